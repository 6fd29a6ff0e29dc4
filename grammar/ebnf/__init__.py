"""Context-free grammars in GBNF and in a subset of Lark's notation, as pushdown programs.

text     gbnf.py or lark_subset.py: rules whose bodies are expressions; regular parts fold into leaves at once
rules    rule_set.py: names are checked, small regular rules are inlined
networks network.py: one automaton a rule, with calls of rules on its edges
machines left_corner.py: left recursion becomes loops; machine.py: equal beginnings are followed together
program  ebnf_program.py: states of the pushdown program
"""
