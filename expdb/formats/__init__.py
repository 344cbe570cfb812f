"""Import rollouts from other formats, and export episodes for trainers.

>>> import expdb
>>> from expdb import formats
>>> chats = [{"messages": [{"role": "user", "content": "2 + 2?"},
...                        {"role": "assistant", "content": "4"}]}]
>>> with expdb.open(":memory:") as db:
...     report = formats.import_rollouts(db.buffer("chats"), formats.read(chats))
>>> report.episodes
1
"""

from expdb.formats.atif import write_atif
from expdb.formats.chat import write_chat
from expdb.formats.hugging_face import write_dataset
from expdb.formats.importing import import_rollouts, read
from expdb.formats.minari import write_minari
from expdb.formats.pairs import write_pairs
from expdb.formats.rollouts import ImportReport, Rollout, Unreadable

__all__ = [
    "ImportReport",
    "Rollout",
    "Unreadable",
    "import_rollouts",
    "read",
    "write_atif",
    "write_chat",
    "write_dataset",
    "write_minari",
    "write_pairs",
]
