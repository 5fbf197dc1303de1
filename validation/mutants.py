"""What `mutmut run` found, room by room, and the mutants no test noticed: `make mutants`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

FATES = {1: "killed", 3: "killed", 37: "types", 0: "survived", 33: "untested"}
"""Exit codes of the tests, as mutmut keeps them; of the others, most are those of a run out of time."""
COLUMNS = ("mutants", "killed", "types", "timeout", "survived", "untested")


def main() -> None:
    rooms: dict[str, Counter[str]] = {}
    left = []
    for path in sorted(Path("mutants/src").rglob("*.meta")):
        room = path.relative_to("mutants/src/ampsure").parts[0].split(".")[0]
        for name, code in json.loads(path.read_text())["exit_code_by_key"].items():
            fate = "left" if code is None else FATES.get(code, "timeout")
            rooms.setdefault(room, Counter()).update(["mutants", fate])
            if fate in ("survived", "untested"):
                left.append(name)
    rooms["all"] = sum(rooms.values(), Counter())
    print(*left, sep="\n")
    print("\n" + f"{'':14}" + "".join(f"{column:>10}" for column in (*COLUMNS, "left")))
    for room, found in rooms.items():
        print(f"{room:14}" + "".join(f"{found[column]:10}" for column in (*COLUMNS, "left")))
    print("\n`mutmut show NAME` shows one of them.")


if __name__ == "__main__":
    main()
