"""The name of what fits: equal for equal fields only, whatever they are called."""

from __future__ import annotations

import itertools

import pytest

from agentkv.tiers.namespace import Namespace, explain_misses

FIELDS = {"weights": "aaa", "kv_dtype": "float16", "parallel": "tp1"}


def test_equal_fields_have_one_digest_in_any_order() -> None:
    names = [Namespace(dict(order)) for order in itertools.permutations(FIELDS.items())]
    assert len({name.digest for name in names}) == 1
    assert len({name.manifest for name in names}) == 1
    assert len(names[0].digest) == 32 and int(names[0].digest, 16)


@pytest.mark.parametrize(
    "other",
    [
        {**FIELDS, "weights": "aab"},
        {**FIELDS, "weights": ""},
        {**FIELDS, "more": ""},
        {k: v for k, v in FIELDS.items() if k != "parallel"},
        {"weights": "float16", "kv_dtype": "aaa", "parallel": "tp1"},
        {'weights": "aaa", "kv_dtype': "float16", "parallel": "tp1"},
        {},
    ],
)
def test_any_difference_is_another_digest(other: dict[str, str]) -> None:
    assert Namespace(other).digest != Namespace(FIELDS).digest


def test_the_digest_is_the_same_in_every_process() -> None:
    """Of what is stored depends on it that this never changes."""
    assert Namespace(FIELDS).digest == "526edf5ee0f0edefa2a818b843bb35f7"


def test_a_manifest_comes_back() -> None:
    for fields in (FIELDS, {}, {"naïve": '"\\\n', "": ""}):
        again = Namespace.from_manifest(Namespace(fields).manifest)
        assert again == Namespace(fields) and again is not None
        assert again.digest == Namespace(fields).digest


@pytest.mark.parametrize("content", [b"", b"junk", b"[1]", b"3", b"null", b"\xff\xfe\x00", "{"])
def test_what_is_no_manifest_is_none(content: bytes | str) -> None:
    assert Namespace.from_manifest(content) is None


def test_the_differences_are_named_on_both_sides() -> None:
    own, other = Namespace(FIELDS), Namespace({**FIELDS, "weights": "b", "new": "1"})
    assert own.differences(other) == other.differences(own) == ["new", "weights"]
    assert own.differences(own) == []


def test_a_miss_is_explained_by_the_nearest_other() -> None:
    own = Namespace(FIELDS)
    far = Namespace({"weights": "x", "kv_dtype": "y", "parallel": "z"})
    near = Namespace({**FIELDS, "kv_dtype": "bfloat16"})
    assert explain_misses(own, [far, near]) == "kv_dtype"
    assert explain_misses(own, [far]) == "kv_dtype, parallel, weights"
    assert explain_misses(own, []) is None
