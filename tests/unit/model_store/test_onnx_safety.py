"""ONNX files that need more than their own bytes are refused; all others are accepted."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from model_store.errors import UnsafeOnnxError
from model_store.safety import onnx_safety
from model_store.safety.onnx_safety import OPERATOR_DOMAINS, check_onnx, is_steady
from tests.fixtures import misbehaving_models, onnx_models

Change = Callable[[onnx.ModelProto], None]


def linear() -> onnx.ModelProto:
    """Returns a model that every runtime accepts; tests modify it."""
    return onnx.load_model_from_string(onnx_models.linear())


def branches(of: onnx.GraphProto) -> onnx.NodeProto:
    """Returns a node that holds a graph."""
    return helper.make_node("If", ["yes"], ["y2"], then_branch=of)


def graph_of(*nodes: onnx.NodeProto, weights: tuple[TensorProto, ...] = ()) -> onnx.GraphProto:
    output = helper.make_tensor_value_info("z", TensorProto.FLOAT, [1])
    return helper.make_graph(nodes, "inner", [], [output], weights)


def elsewhere(location: str = "/etc/passwd") -> TensorProto:
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), "w2")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def constant(tensor: TensorProto) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["c"], value=tensor)


def sparse(values: TensorProto) -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.arange(4)), [4])


def function(domain: str, name: str, *nodes: onnx.NodeProto) -> onnx.FunctionProto:
    opset = [helper.make_opsetid("", onnx_models.OPSET)]
    return helper.make_function(domain, name, ["a"], ["b"], nodes, opset)


@pytest.mark.parametrize(
    "data",
    [
        onnx_models.linear(),
        onnx_models.pair(),
        onnx_models.echo(),
        onnx_models.slow_lookup(),
        misbehaving_models.blocking(),  # a loop, which is a graph within the graph
    ],
)
def test_models_that_are_data_are_let_through(data: bytes) -> None:
    check_onnx(data, "model.onnx")


PLACES: dict[str, Change] = {
    "a weight": lambda m: m.graph.initializer.append(elsewhere()),
    "a weight beside the model": lambda m: m.graph.initializer.append(elsewhere("model.bin")),
    "a constant": lambda m: m.graph.node.append(constant(elsewhere())),
    "the constant of a branch": lambda m: m.graph.node.append(
        branches(graph_of(constant(elsewhere())))
    ),
    "the weight of a branch": lambda m: m.graph.node.append(
        branches(graph_of(weights=(elsewhere(),)))
    ),
    "a sparse weight": lambda m: m.graph.sparse_initializer.append(sparse(elsewhere())),
    "a sparse constant": lambda m: m.graph.node.append(
        helper.make_node("Constant", [], ["c"], sparse_value=sparse(elsewhere()))
    ),
    "a list of tensors": lambda m: m.graph.node.append(
        helper.make_node("Constant", [], ["c"], values=[elsewhere()])
    ),
    "a list of graphs": lambda m: m.graph.node.append(
        helper.make_node("Scan", [], ["c"], bodies=[graph_of(constant(elsewhere()))])
    ),
    "a function": lambda m: m.functions.append(function("mine", "F", constant(elsewhere()))),
    "a default of a function": lambda m: m.functions.append(with_default(elsewhere())),
    "training": lambda m: m.training_info.add().algorithm.initializer.append(elsewhere()),
}


def with_default(tensor: TensorProto) -> onnx.FunctionProto:
    made = function("mine", "F")
    made.attribute_proto.append(helper.make_attribute("value", tensor))
    return made


@pytest.mark.parametrize("change", PLACES.values(), ids=PLACES)
def test_weights_in_another_file_are_refused_wherever_they_are_named(change: Change) -> None:
    model = linear()
    change(model)
    with pytest.raises(UnsafeOnnxError, match=r"^model\.onnx has weights in another file"):
        check_onnx(model.SerializeToString(), "model.onnx")


def test_a_tensor_that_only_hints_at_another_file_is_refused() -> None:
    for field in ("data_location", "external_data"):
        model, tensor = linear(), elsewhere()
        tensor.ClearField(field)
        model.graph.initializer.append(tensor)
        with pytest.raises(UnsafeOnnxError, match="weights in another file"):
            check_onnx(model.SerializeToString(), "model.onnx")


def test_operators_of_a_library_are_refused_by_name() -> None:
    model = linear()
    custom = helper.make_node("Backdoor", ["y"], ["y3"], domain="evil.corp")
    model.graph.node.append(branches(graph_of(custom)))
    with pytest.raises(UnsafeOnnxError, match=r"code of their own \(evil\.corp\.Backdoor\)"):
        check_onnx(model.SerializeToString(), "model.onnx")
    model.functions.append(function("evil.corp", "Another"))
    with pytest.raises(UnsafeOnnxError, match=r"evil\.corp\.Backdoor"):
        check_onnx(model.SerializeToString(), "model.onnx")
    model.functions.append(function("evil.corp", "Backdoor"))  # now the file defines it itself
    check_onnx(model.SerializeToString(), "model.onnx")
    model.functions[1].node.append(helper.make_node("Inner", [], [], domain="evil.corp"))
    with pytest.raises(UnsafeOnnxError, match=r"evil\.corp\.Inner"):
        check_onnx(model.SerializeToString(), "model.onnx")


def test_code_compiled_for_a_device_is_refused() -> None:
    model = linear()
    model.graph.node.append(helper.make_node("EPContext", [], ["c"], domain="com.microsoft"))
    with pytest.raises(UnsafeOnnxError, match=r"com\.microsoft\.EPContext"):
        check_onnx(model.SerializeToString(), "model.onnx")


def test_every_domain_that_the_runtime_brings_along_is_allowed() -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    assert {schema.domain for schema in runtime.get_all_operator_schema()} <= OPERATOR_DOMAINS


@pytest.mark.parametrize("length", [0, 1, 10, 100, -1])
def test_a_file_that_was_cut_is_refused_or_says_nothing(length: int) -> None:
    whole = onnx_models.linear()
    assert onnx.load_model_from_string(whole[:0]) == onnx.ModelProto()
    if length == 0:
        check_onnx(b"", "model.onnx")  # no field, so nothing to refuse: the runtime does
        return
    with pytest.raises(UnsafeOnnxError, match="is not ONNX, or broken"):
        check_onnx(whole[:length], "model.onnx")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x3b\x3c", "unknown wire type 3"),
        (b"\x00\x01", "no number"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "more than 10 bytes"),
        (b"\x3a\x05\x0a", "cut off"),
        (b"\x3a\x02\x0a\x05\x42\x42\x42\x42\x42", "cut off"),  # a node that leaves its graph
        (b"\x08\x07\x12\x04ORTM", "ONNX Runtime's own format"),
    ],
)
def test_what_a_runtime_might_understand_otherwise_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(UnsafeOnnxError, match=why):
        check_onnx(data, "model.onnx")


def test_the_location_of_a_tensor_counts_however_it_is_written() -> None:
    def model(location: bytes) -> bytes:
        tensor = b"\x70" + location  # field 14
        graph = b"\x2a" + bytes([len(tensor)]) + tensor
        return b"\x3a" + bytes([len(graph)]) + graph

    check_onnx(model(b"\x00"), "model.onnx")
    for external in (b"\x01", b"\x81\x00", b"\x81\x80\x80\x80\x80\x00"):
        assert onnx.load_model_from_string(model(external)).graph.initializer[0].data_location == 1
        with pytest.raises(UnsafeOnnxError, match="weights in another file"):
            check_onnx(model(external), "model.onnx")


def test_graphs_within_graphs_end_somewhere() -> None:
    inner = graph_of()
    for _ in range(onnx_safety.MAX_DEPTH - 1):
        inner = graph_of(branches(inner))
    model = linear()
    model.graph.CopyFrom(inner)
    check_onnx(model.SerializeToString(), "model.onnx")
    model.graph.CopyFrom(graph_of(branches(inner)))
    with pytest.raises(UnsafeOnnxError, match="more than 32 graphs within each other"):
        check_onnx(model.SerializeToString(), "model.onnx")


def test_fields_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_safety, "MAX_FIELDS", 100)
    check_onnx(b"\x08\x01" * 100, "model.onnx")
    with pytest.raises(UnsafeOnnxError, match="more than 100 fields"):
        check_onnx(b"\x08\x01" * 101, "model.onnx")
    with pytest.raises(UnsafeOnnxError, match="more than 100 fields"):
        check_onnx((b"\x3a\x66" + b"\x08\x01" * 51) * 2, "model.onnx")


def test_weights_are_stepped_over_and_not_copied() -> None:
    model = linear()
    large = numpy_helper.from_array(np.zeros(8_000_000, np.float32), "large")
    model.graph.initializer.append(large)
    data = model.SerializeToString()
    tracemalloc.start()
    check_onnx(data, "model.onnx")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 200_000


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_let_through(data: bytes) -> None:
    try:
        check_onnx(data, "model.onnx")
    except UnsafeOnnxError as error:
        assert "model.onnx" in str(error)  # noqa: PT017


@given(st.data())
def test_whatever_is_changed_no_other_file_is_ever_read(data: st.DataObject) -> None:
    """After any change, a file that protobuf reads as a tensor in another file is refused."""
    model = linear()
    model.graph.initializer.append(elsewhere())
    octets = bytearray(model.SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(octets) - 1))
        octets[at] = data.draw(st.integers(0, 255))
    try:
        understood = onnx.load_model_from_string(bytes(octets))
    except Exception:
        return
    asks = any(t.data_location or t.external_data for t in understood.graph.initializer)
    known = all(n.domain in OPERATOR_DOMAINS for n in understood.graph.node)
    if asks or not known:
        with pytest.raises(UnsafeOnnxError):
            check_onnx(bytes(octets), "model.onnx")


def test_a_network_of_plain_operators_is_steady() -> None:
    assert is_steady(onnx_models.linear())


@pytest.mark.parametrize("operator", ["Loop", "NonMaxSuppression", "Range", "Tile"])
def test_operators_whose_time_depends_on_values_are_found_at_any_depth(operator: str) -> None:
    inner = graph_of(helper.make_node(operator, ["y"], ["z"]))
    model = linear()
    model.graph.node.append(helper.make_node("Unknown", ["y"], ["y2"], body=inner))
    assert not is_steady(model.SerializeToString())
