"""MLServer's runtime; its adaptive batching passes joined requests."""

from pathlib import Path
from typing import Any

from mlserver import MLModel  # type: ignore[import-not-found]
from mlserver.codecs import NumpyCodec  # type: ignore[import-not-found]
from mlserver.types import InferenceResponse  # type: ignore[import-not-found]
from peer_network import PeerNetwork  # type: ignore[import-not-found]


class Runtime(MLModel):  # type: ignore[misc]
    """Model class that MLServer calls."""

    async def load(self) -> bool:
        self.network = PeerNetwork(Path(__file__).parent)
        return True

    async def predict(self, payload: Any) -> Any:
        batch = NumpyCodec.decode_input(payload.inputs[0])
        answer = self.network.run(batch)
        outputs = [NumpyCodec.encode_output(self.network.output, answer)]
        return InferenceResponse(model_name=self.name, outputs=outputs)
