"""Refuse arithmetic on fields that are not numbers, which SQLite silently treats as 0.

SQLite compiles a query to a program. This program shows which values reach an addition or a sum
through aliases, subqueries and sorters, which the text of the query does not. The opcodes are
documented (sqlite.org/opcode.html), but may change. If this module does not know an opcode, the
only consequence is that a value may not be detected.
"""

from collections import defaultdict
from typing import Any

from expdb.errors import SqlError

ARITHMETIC = {"Add": "+", "Subtract": "-", "Multiply": "*", "Divide": "/", "Remainder": "%"}
COMPUTING = {
    "sum",
    "avg",
    "total",
    "abs",
    "round",
    "sqrt",
    "exp",
    "ln",
    "log",
    "log10",
    "log2",
    "pow",
    "power",
    "floor",
    "ceil",
    "ceiling",
}
# Functions that return one of their arguments.
PASSING = {"coalesce", "ifnull", "nullif", "min", "max"}
# Maximum instructions for the second value of coalesce(); a longer branch has another cause.
COALESCE = 8
WRITES_P2 = {
    "Integer",
    "Int64",
    "Real",
    "String",
    "String8",
    "Blob",
    "Variable",
    "Rowid",
    "Sequence",
    "NewRowid",
    "Count",
}

Names = frozenset[str]
NONE: Names = frozenset()


def check(driver: Any, query: str, params: dict[str, Any], not_numbers: set[str]) -> None:
    """Raise SqlError if a query computes with one of the fields that are not numbers."""
    if not_numbers:
        program = driver.execute(f"EXPLAIN {query}", params).fetchall()
        flow = _Flow(
            {p2: str(p4) for _, opcode, _, p2, _, p4, *_ in program if opcode == "String8"},
            not_numbers,
        )
        for _ in range(2):  # the beginning of a loop may use values from the end of the loop
            for address, opcode, p1, p2, p3, p4, *_ in program:
                flow.follow(address, opcode, p1, p2, p3, str(p4))


class _Flow:
    """Track the fields that the registers and temporary tables of a program hold."""

    def __init__(self, texts: dict[int, str], not_numbers: set[str]):
        self.texts, self.not_numbers = texts, not_numbers
        self.registers: dict[int, Names] = defaultdict(frozenset)
        # The fields of each column, by the register that holds the row.
        self.records: dict[int, list[Names]] = {}
        # The fields of each column, by the cursor of a temporary table.
        self.tables: dict[int, list[Names]] = {}
        # By address: a register, and the fields that it may still hold from before a branch.
        self.kept: dict[int, tuple[int, Names]] = {}
        self.same: dict[int, int] = {}  # cursors that share another cursor's table

    def follow(self, address: int, opcode: str, p1: int, p2: int, p3: int, p4: str) -> None:
        """Track the fields through one instruction."""
        registers = self.registers
        # All values of coalesce() are stored in the same register.
        if opcode == "NotNull" and 1 < p2 - address <= COALESCE:
            self.kept[p2] = (p1, registers[p1])
        if address in self.kept:
            register, fields = self.kept.pop(address)
            registers[register] |= fields
        function = p4.partition("(")[0].lower()
        if opcode in ("Function", "PureFunc"):
            arguments = [registers[p2 + k] for k in range(_count(p4))]
            if function in COMPUTING:
                self._refuse(arguments[0], f"{function}()")
            registers[p3] = NONE
            if function == "field":
                registers[p3] = frozenset({self.texts.get(p2 + 1, "")} & self.not_numbers)
            elif function in PASSING:
                registers[p3] = NONE.union(*arguments)
        elif opcode in ("AggStep", "AggStep1", "AggInverse"):
            if function in COMPUTING:
                self._refuse(registers[p2], f"{function}()")
            elif function in PASSING:
                registers[p3] |= registers[p2]
        elif opcode in ARITHMETIC:
            self._refuse(registers[p1] | registers[p2], ARITHMETIC[opcode])
            registers[p3] = NONE
        elif opcode in ("Copy", "SCopy"):
            for k in range(p3 + 1 if opcode == "Copy" else 1):
                registers[p2 + k] = registers[p1 + k]
        elif opcode == "Cast":
            registers[p1] = NONE
        elif opcode in WRITES_P2:
            registers[p2] = NONE
        elif opcode == "Null":
            for k in range(p2, max(p2, p3) + 1):
                registers[k] = NONE
        else:
            self._follow_rows(opcode, p1, p2, p3)

    def _follow_rows(self, opcode: str, p1: int, p2: int, p3: int) -> None:
        if opcode == "MakeRecord":
            self.records[p3] = [self.registers[p1 + k] for k in range(p2)]
        elif opcode in ("Insert", "IdxInsert", "SorterInsert"):
            self.tables[self.same.get(p1, p1)] = self.records.get(p2, [])
        elif opcode == "SorterData":
            self.records[p2] = self.tables.get(p1, [])
            self.tables[p3] = self.records[p2]
        elif opcode == "OpenDup":
            self.same[p1] = self.same.get(p2, p2)
        elif opcode == "Column":
            columns = self.tables.get(self.same.get(p1, p1), [])
            self.registers[p3] = columns[p2] if p2 < len(columns) else NONE

    def _refuse(self, fields: Names, operation: str) -> None:
        if fields:
            raise SqlError(
                f"{operation} requires numbers, but field(payload, {min(fields)!r}) is not a "
                "number; use CAST(... AS REAL) if the field contains numbers as text"
            )


def _count(function: str) -> int:
    """Return the number of arguments of a function such as "field(2)"."""
    count = function.partition("(")[2].rstrip(")")
    return max(1, int(count)) if count.isdigit() else 1
