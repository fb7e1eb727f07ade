import pytest

from devstack.functions.bindings import IndexingError
from devstack.functions.http import compile_route

GUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def test_a_path_matches_a_template_as_in_aspnet() -> None:
    for template, path, values in (
        ("orders", "api/orders", {}),
        ("Orders", "api/oRDERS", {}),
        ("orders", "api/orders/1", None),
        ("orders/{id}", "api/orders/a-1", {"id": "a-1"}),
        ("orders/{id}", "api/orders", None),
        ("orders/{id:int}", "api/orders/12", {"id": "12"}),
        ("orders/{id:int}", "api/orders/x", None),
        ("orders/{id:int?}", "api/orders", {}),
        ("orders/{page=1}", "api/orders", {"page": "1"}),
        ("orders/{page=1}", "api/orders/7", {"page": "7"}),
        ("files/{*path}", "api/files/a/b.txt", {"path": "a/b.txt"}),
        ("files/{*path}", "api/files", {}),
        ("f/{name}.{ext}", "api/f/a.txt", {"name": "a", "ext": "txt"}),
        ("k/{id:guid}", f"api/k/{GUID}", {"id": GUID}),
        ("k/{id:guid}", "api/k/0f8fad5b", None),
        ("k/{code:length(3)}", "api/k/abc", {"code": "abc"}),
        ("k/{code:length(3)}", "api/k/abcd", None),
        ("k/{yes:bool}", "api/k/True", {"yes": "True"}),
    ):
        assert compile_route("f", "api", template).match(path) == values


def test_an_empty_prefix_leaves_the_route_alone() -> None:
    assert compile_route("f", "", "orders").match("orders") == {}


def test_literal_routes_rank_before_constrained_before_free_before_catch_all() -> None:
    templates = ["{*all}", "{id}", "{id:int}", "orders"]
    ranked = sorted(templates, key=lambda template: compile_route("f", "api", template).rank)
    assert ranked == ["orders", "{id:int}", "{id}", "{*all}"]


def test_a_wrong_template_is_refused_with_a_sentence() -> None:
    for template, sentence in (
        ("{id:prime}", "constraint 'prime'"),
        ("{id", "cannot be read at"),
        ("{}", "cannot be read at"),
        ("a/{id}/{id}", "two parameters named 'id'"),
        ("a/{1x}", "invalid name '1x'"),
        ("{a:length(9,1)}", "constraint 'length.9,1.'"),
    ):
        with pytest.raises(IndexingError, match=sentence):
            compile_route("f", "api", template)
