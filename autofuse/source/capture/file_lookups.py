"""Counts how often the check of a file looks up other files. The findings cache needs this to choose a key.

Every lookup goes through project_files.py or given_files.py, which update the counter. A test ensures that no other
module of autofuse/source opens a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class FileLookups:
    """The lookups of this process.

    Attributes:
        count: The number of lookups.
        paths: The paths where files were looked for, whether they exist or not. The dict is used as an ordered set.
    """

    count: int = 0
    paths: dict[str, None] = field(default_factory=dict)


FILE_LOOKUPS = FileLookups()
