"""No package has a circle of imports, not even inside functions or for types."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp

PACKAGES = ("sas", "orders", "devstack", "samples", "tools", "lab")


def test_no_package_has_a_circle_of_imports() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert {"sas.domain", "sas.cli.main", "devstack.stack"} <= set(imports)
    TopologicalSorter(imports).prepare()  # raises CycleError with the circle
