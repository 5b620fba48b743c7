"""What reading a file asked of other files. Whoever remembers what was found has to know what it rests on.

Every question about another file goes through project_files.py or given_files.py, and is counted here; a test holds
that no other file of autofuse/source opens one.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class LookedAt:
    """Of this process: how often other files were asked for, and where files were looked for, there or not."""

    questions: int = 0
    places: dict[str, None] = field(default_factory=dict)  # in their order, each once


LOOKED_AT = LookedAt()
