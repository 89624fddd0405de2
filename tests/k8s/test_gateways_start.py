"""The gateways' images contain all that the overlays' settings need: each is started with them.

The quick part of this for all images is `tests/locks`, which `make k8s-validate` runs as well.
"""

import pytest

from tests.images.lock_environment import lock_of
from tests.k8s.rendering import OVERLAYS
from tests.k8s.starting import (
    START_TIMEOUT_S,
    Surroundings,
    assert_starts_and_stops,
    pod_of,
    started,
)

WITH_GATEWAYS = tuple(overlay for overlay in OVERLAYS if overlay != "kserve")


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("overlay", WITH_GATEWAYS)
def test_a_gateway_of_the_overlay_s_image_starts_with_its_settings(
    overlay: str, around: Surroundings
) -> None:
    assert_starts_and_stops(overlay, pod_of(overlay, "flambeau-gateway"), around)


def test_an_image_without_an_extra_that_a_setting_needs_is_found(around: Surroundings) -> None:
    """Else the test above could find nothing: the image for API keys, told of tokens."""
    pod = pod_of("outward", "flambeau-gateway")
    assert lock_of(pod.container["image"]) == "gateway-auth"
    with started("outward", pod, around, "flambeau/gateway:0.1.0") as (process, log):
        assert process.wait(START_TIMEOUT_S) != 0
        log.join()
        assert "jwt_keys needs the extra auth" in "\n".join(log.all())
