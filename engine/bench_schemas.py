"""Ten extraction tasks: a schema, a document, and the record that a careful reader would take from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Extraction:
    """`record` is valid under `schema`; where a model's weights are random it is replayed as what the model says."""

    name: str
    schema: dict[str, Any]
    document: str
    record: dict[str, Any]


def text(longest: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": longest}


def record_of(**properties: Any) -> dict[str, Any]:
    """A closed object, all of whose members are required."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def list_of(items: dict[str, Any], most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


DATE = {"type": "string", "format": "date"}
COUNT = {"type": "integer", "minimum": 0, "maximum": 1_000_000}
MONEY = {"type": "number", "minimum": 0, "maximum": 1_000_000}
CURRENCY = {"enum": ["EUR", "USD", "GBP", "CHF", "JPY"]}

EXTRACTIONS = (
    Extraction(
        "landmark",
        record_of(name=text(40), city=text(30), country=text(30), year_built=COUNT, still_standing={"type": "boolean"}),
        "The Brandenburg Gate in Berlin, Germany, was built in 1791 and is visited by millions every year.",
        {
            "name": "Brandenburg Gate",
            "city": "Berlin",
            "country": "Germany",
            "year_built": 1791,
            "still_standing": True,
        },
    ),
    Extraction(
        "invoice",
        record_of(
            invoice_number=text(20),
            issue_date=DATE,
            currency=CURRENCY,
            line_items=list_of(record_of(description=text(40), quantity=COUNT, unit_price=MONEY), 4),
            total_amount=MONEY,
        ),
        "Invoice A-2041 of 3 March 2024: two office chairs at 149.50 EUR, one desk at 320 EUR. Total: 619 EUR.",
        {
            "invoice_number": "A-2041",
            "issue_date": "2024-03-03",
            "currency": "EUR",
            "line_items": [
                {"description": "office chair", "quantity": 2, "unit_price": 149.5},
                {"description": "desk", "quantity": 1, "unit_price": 320},
            ],
            "total_amount": 619,
        },
    ),
    Extraction(
        "bug report",
        record_of(
            title=text(60),
            severity={"enum": ["low", "medium", "high", "critical"]},
            component={"enum": ["parser", "network", "storage", "interface", "documentation"]},
            version={"type": "string", "pattern": "^[0-9]+[.][0-9]+[.][0-9]+$"},
            reproducible={"type": "boolean"},
        ),
        "Since 2.4.1 the program always crashes when an empty file is opened; the parser reads before its start.",
        {
            "title": "Crash when an empty file is opened",
            "severity": "high",
            "component": "parser",
            "version": "2.4.1",
            "reproducible": True,
        },
    ),
    Extraction(
        "flight",
        record_of(
            flight_number={"type": "string", "pattern": "^[A-Z]{2}[0-9]{2,4}$"},
            departure_airport={"type": "string", "pattern": "^[A-Z]{3}$"},
            arrival_airport={"type": "string", "pattern": "^[A-Z]{3}$"},
            departure_date=DATE,
            cabin_class={"enum": ["economy", "premium economy", "business", "first"]},
        ),
        "You fly LH1074 from FRA to LHR on 12 May 2024, seat 14C in economy.",
        {
            "flight_number": "LH1074",
            "departure_airport": "FRA",
            "arrival_airport": "LHR",
            "departure_date": "2024-05-12",
            "cabin_class": "economy",
        },
    ),
    Extraction(
        "job offer",
        record_of(
            job_title=text(40),
            company_name=text(30),
            location=record_of(city=text(30), remote_allowed={"type": "boolean"}),
            employment_type={"enum": ["full-time", "part-time", "contract", "internship"]},
            required_skills=list_of(text(20), 4),
        ),
        "Hafen Data in Hamburg looks for a data engineer, full-time, home office possible. You know Python and SQL.",
        {
            "job_title": "Data engineer",
            "company_name": "Hafen Data",
            "location": {"city": "Hamburg", "remote_allowed": True},
            "employment_type": "full-time",
            "required_skills": ["Python", "SQL"],
        },
    ),
    Extraction(
        "clinical note",
        record_of(
            patient=record_of(
                age_years={"type": "integer", "minimum": 0, "maximum": 130}, sex={"enum": ["f", "m", "x"]}
            ),
            chief_complaint=text(50),
            blood_pressure=record_of(systolic=COUNT, diastolic=COUNT),
            medications=list_of(record_of(drug_name=text(30), dose_milligrams=MONEY), 3),
            follow_up_required={"type": "boolean"},
        ),
        "Woman, 54, with headaches for two weeks. Blood pressure 150 over 95. Ramipril 5 mg; comes again in a month.",
        {
            "patient": {"age_years": 54, "sex": "f"},
            "chief_complaint": "headaches for two weeks",
            "blood_pressure": {"systolic": 150, "diastolic": 95},
            "medications": [{"drug_name": "Ramipril", "dose_milligrams": 5}],
            "follow_up_required": True,
        },
    ),
    Extraction(
        "recipe",
        record_of(
            recipe_name=text(40),
            servings=COUNT,
            preparation_minutes=COUNT,
            difficulty={"enum": ["easy", "medium", "hard"]},
            ingredients=list_of(
                record_of(ingredient=text(30), amount=MONEY, unit={"enum": ["g", "ml", "piece", "spoon"]}), 4
            ),
        ),
        "Pancakes for four, easy, done in 20 minutes: 250 g of flour, 500 ml of milk and three eggs.",
        {
            "recipe_name": "Pancakes",
            "servings": 4,
            "preparation_minutes": 20,
            "difficulty": "easy",
            "ingredients": [
                {"ingredient": "flour", "amount": 250, "unit": "g"},
                {"ingredient": "milk", "amount": 500, "unit": "ml"},
                {"ingredient": "egg", "amount": 3, "unit": "piece"},
            ],
        },
    ),
    Extraction(
        "support ticket",
        record_of(
            customer_name=text(30),
            product=text(30),
            category={"enum": ["delivery", "payment", "defect", "question", "other"]},
            sentiment={"enum": ["positive", "neutral", "negative"]},
            urgent={"type": "boolean"},
            requested_action={"enum": ["refund", "replacement", "information", "none"]},
        ),
        "Hello, I am Maria Lopez. My kettle arrived with a crack and I need a new one before Friday. I am annoyed.",
        {
            "customer_name": "Maria Lopez",
            "product": "kettle",
            "category": "defect",
            "sentiment": "negative",
            "urgent": True,
            "requested_action": "replacement",
        },
    ),
    Extraction(
        "match",
        record_of(
            home_team=record_of(team_name=text(30), goals_scored=COUNT),
            away_team=record_of(team_name=text(30), goals_scored=COUNT),
            match_date=DATE,
            stadium=text(40),
            attendance=COUNT,
        ),
        "On 4 July 1954 West Germany beat Hungary 3-2 in the Wankdorf Stadium in front of 62,500 spectators.",
        {
            "home_team": {"team_name": "West Germany", "goals_scored": 3},
            "away_team": {"team_name": "Hungary", "goals_scored": 2},
            "match_date": "1954-07-04",
            "stadium": "Wankdorf Stadium",
            "attendance": 62500,
        },
    ),
    Extraction(
        "server",
        record_of(
            host_name=text(30),
            operating_system={"enum": ["linux", "windows", "freebsd"]},
            memory_gigabytes=COUNT,
            disks=list_of(record_of(mount_point=text(20), used_percent={"type": "integer", "maximum": 100}), 3),
            status={"enum": ["healthy", "degraded", "unreachable"]},
        ),
        "web-03 (Linux, 64 GB) answers slowly; / is at 71 % and /var at 98 %.",
        {
            "host_name": "web-03",
            "operating_system": "linux",
            "memory_gigabytes": 64,
            "disks": [{"mount_point": "/", "used_percent": 71}, {"mount_point": "/var", "used_percent": 98}],
            "status": "degraded",
        },
    ),
)
