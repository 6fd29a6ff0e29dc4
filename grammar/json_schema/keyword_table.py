"""The table of keywords in `grammar/README.md`, written from the code.

`python -m structgen.grammar.json_schema.keyword_table [CORPUS]` writes it anew: statuses from `keywords.py` and
`formats.py`, shares from a corpus of schemas (.jsonl.gz with `schema` in each line): in how many of them a keyword is
used at least once. Without the corpus, the shares that stand in the file are kept.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from structgen.grammar.formats import FORMATS, NARROWED_FORMATS
from structgen.grammar.json_schema.keywords import APPLIES_TO, DRAFT_NAMES, KEYWORDS, LATEST, OPENAPI, Keyword
from structgen.grammar.json_schema.occurrences import Schemas
from structgen.grammar.json_schema.options import JsonOptions

README = Path(__file__).parents[1] / "README.md"
CORPUS = Path(__file__).resolve().parents[3] / "shared" / "data" / "maskbench-dev.jsonl.gz"
BEGIN = "<!-- Written by python -m structgen.grammar.json_schema.keyword_table: change keywords.py instead. -->"
END = "<!-- End of what is written. -->"
_ORDER = ("enforced", "structure", "annotation")
_ROW = re.compile(r"^\| `([^`]+)` \|.*\| ([<0-9. ]+ %|) \|$", re.MULTILINE)

Shares = Mapping[str, str]


def table(shares: Shares) -> str:
    """Both tables; `shares` of keywords by name, of formats by "format: " and name."""
    lines = ["| keyword | drafts | about | here | corpus |", "|---|---|---|---|---|"]
    for status in _ORDER:
        for name, keyword in KEYWORDS.items():
            if keyword.status == status:
                cells = (f"`{name}`", _drafts(keyword), APPLIES_TO.get(name, ""), _fate(keyword), shares.get(name, ""))
                lines.append(_row(cells))
    lines += ["", "| format | here | corpus |", "|---|---|---|"]
    for name in sorted(FORMATS):
        fate = "enforced, a little less than the standard" if name in NARROWED_FORMATS else "enforced"
        lines.append(_row((f"`format: {name}`", fate, shares.get(f"format: {name}", ""))))
    return "\n".join(lines)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _drafts(keyword: Keyword) -> str:
    if keyword.since == OPENAPI:
        return "none declared"
    first, last = DRAFT_NAMES[keyword.since], DRAFT_NAMES[keyword.until]
    if keyword.since == keyword.until:
        return first
    if keyword.until == LATEST:
        return "all" if keyword.since == 4 else f"from {first}"
    return f"up to {last}" if keyword.since == 4 else f"{first} to {last}"


def _fate(keyword: Keyword) -> str:
    return "understood" if keyword.status == "structure" else keyword.status


def shares_of(corpus: Path) -> Shares:
    """In how many of the schemas each keyword is used, as it stands in the table."""
    counts: Counter[str] = Counter()
    total = 0
    with gzip.open(corpus, "rt", encoding="utf-8") as lines:
        for line in lines:
            total += 1
            counts.update(set(_used(json.loads(line)["schema"])))
    return {name: _percent(count / total) for name, count in counts.items()}


def _percent(share: float) -> str:
    return "< 0.1 %" if share < 0.0005 else f"{100 * share:.1f} %"


def _used(schema: Any) -> Iterator[str]:
    for one in Schemas(schema, JsonOptions()).occurrences():
        yield one.name
        if one.name == "format" and isinstance(one.value, str):
            yield f"format: {one.value}"


def written_shares(text: str) -> Shares:
    """The shares that stand in a README."""
    return dict(_ROW.findall(text))


def updated(text: str, corpus: Path | None) -> str:
    """The README with the tables written anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    shares = written_shares(text) if corpus is None else shares_of(corpus)
    return f"{before}{BEGIN}\n\n{table(shares)}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write the README."""
    corpus = Path(arguments[0]) if arguments else CORPUS
    if arguments and not corpus.exists():
        print(f"there is no {corpus}", file=sys.stderr)
        return 2
    README.write_text(
        updated(README.read_text(encoding="utf-8"), corpus if corpus.exists() else None), encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
