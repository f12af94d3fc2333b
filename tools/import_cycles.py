"""A contract for import-linter: no modules import each other in a circle.

Imports for type checkers alone do not count; imports inside of functions do.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import Any

import grimp
from importlinter import Contract, ContractCheck, fields, output


class NoCycles(Contract):
    """Fails with one cycle, if there is any."""

    root = fields.StringField()

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        root: Any = self.root
        runtime = grimp.build_graph(root, exclude_type_checking_imports=True)
        imports = {one: runtime.find_modules_directly_imported_by(one) for one in runtime.modules}
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as exc:
            return ContractCheck(kept=False, metadata={"cycle": exc.args[1]})
        return ContractCheck(kept=True)

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the cycle, each module with the one that it imports below it."""
        for module in reversed(check.metadata["cycle"]):
            output.print_error(module, bold=False)
