"""The text that the demo's model reads: the log of a harbour that does not exist, written by a small grammar.

Pure Python, the same on every machine. Nothing in it is taken from anywhere.
"""

from __future__ import annotations

import random
import re

CHARACTERS = 50_000

# A name in braces becomes one of its own entries, again and again, until no brace is left.
_GRAMMAR: dict[str, tuple[str, ...]] = {
    "entry": (
        "{arrival} {remark}",
        "{arrival} {remark} {remark}",
        "{departure} {remark}",
        "{weather}. {remark}",
        "{talk}",
    ),
    "arrival": (
        "The {boat} came in {manner} with {count} {crates} of {cargo}.",
        "In came the {boat}, {manner}, {count} {crates} of {cargo} below and {person} at the wheel.",
        "{person} brought the {boat} in {manner}; we unloaded {count} {crates} of {cargo} before {meal}.",
    ),
    "departure": (
        "The {boat} left for {place} with {count} {crates} of {cargo}.",
        "{person} took the {boat} out to {place} {manner}, and did not say when to expect them.",
        "We cast off the {boat} at first light; she is bound for {place} with {cargo} and {count} letters.",
    ),
    "weather": (
        "Wind from the {quarter}, sea {sea}",
        "{fog} until {meal}, then wind from the {quarter}",
        "The glass is falling and the sea is {sea}",
        "Rain from the {quarter} all night, and the harbour full of {cargo} that nobody will move",
    ),
    "talk": (
        '"{question}" asked {person}. "{answer}" said {person}, and went back to the {task}.',
        '{person} says that the {boat} was seen off {place}. "{answer}" said {person}.',
        '"{answer}" said {person} when I asked about the {count} {crates} of {cargo}. "{question}"',
    ),
    "question": (
        "Who moved the {cargo}?",
        "Is that the {boat} or only {fog}?",
        "Did anyone count the {crates}?",
        "Where is the boat from {place}?",
        "Have we any {cargo} left?",
    ),
    "answer": (
        "Not before {meal},",
        "Ask the cat,",
        "It was {person},",
        "There were {count} of them yesterday,",
        "Nobody sails to {place} with the wind in the {quarter},",
        "That is what the {task} is for,",
    ),
    "remark": (
        "The cat watched.",
        "{weather}.",
        "The {crates} went into the long shed.",
        "I lit the lamp {manner}.",
        "{person} did the {task} and asked for nothing.",
        "Two {crates} were wet, and one was empty.",
        "Nothing else to write.",
        "Paid in {cargo}, as is the custom in {place}.",
    ),
    "person": ("old Marrow", "Ine", "the pilot", "Tobben", "my sister", "the younger Haal", "Captain Sorrel"),
    "boat": ("Patience", "Grey Heron", "Second Thought", "Lantern", "Widow's Loaf", "Morning Errand", "Kittiwake"),
    "place": ("Ostermouth", "the Skerries", "Low Haven", "Pellin", "the far side of the bay", "Quillsand"),
    "cargo": ("salt", "lamp oil", "apples", "tin", "rope", "dried peas", "window glass", "wool", "bells"),
    "crates": ("crates", "barrels", "sacks", "bundles"),
    "count": ("three", "four", "six", "nine", "eleven", "a dozen", "twenty", "thirty-one", "forty"),
    "manner": ("slowly", "under one sail", "on the evening tide", "without a sound", "by the north channel"),
    "task": ("nets", "book-keeping", "painting of the rail", "mending of the bell rope", "sweeping"),
    "quarter": ("north", "north-east", "east", "south", "south-west", "west"),
    "sea": ("flat", "grey and short", "high beyond the mole", "white as far as one can see"),
    "fog": ("Fog", "Thick fog", "A thin mist", "Smoke from the lime kiln"),
    "meal": ("breakfast", "noon", "supper", "the second bell"),
}
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_HOURS = (("before dawn", "at seven"), ("at ten", "at noon"), ("at three", "at four"), ("at dusk", "near midnight"))
_HOLE = re.compile(r"\{(\w+)\}")


def text(characters: int = CHARACTERS) -> str:
    """The log's first `characters` characters: four entries a day, one to three sentences each, one a line."""
    draw = random.Random(1883)
    log, entry = "", 0
    while len(log) < characters:
        day, hour = divmod(entry, len(_HOURS))
        log += f"{_DAYS[day % len(_DAYS)]}, {draw.choice(_HOURS[hour])}. {_grown('{entry}', draw)}\n"
        entry += 1
    return log[:characters]


def _grown(sentence: str, draw: random.Random) -> str:
    """`sentence` with every hole filled, each filling grown in turn; what follows a full stop begins with a capital."""
    while (hole := _HOLE.search(sentence)) is not None:
        sentence = sentence[: hole.start()] + draw.choice(_GRAMMAR[hole[1]]) + sentence[hole.end() :]
    return re.sub(r"(?:^|(?<=[.?] ))\"?[a-z]", lambda start: start[0].upper(), sentence)
