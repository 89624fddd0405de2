"""Datatype names of the Open Inference Protocol; `tensors` maps them to NumPy types.

Source: https://github.com/kserve/open-inference-protocol (tensor data types).
"""

DATATYPE_NAMES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BF16", "BYTES",
)  # fmt: skip
