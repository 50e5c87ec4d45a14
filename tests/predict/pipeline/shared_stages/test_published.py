"""PipeDream's own profile of VGG-16, and the pipelines that its authors ran."""

import pytest

from lib.predict.pipeline.cuts import Partition, with_replicas
from lib.predict.pipeline.shared_stages.published import vgg16


def test_the_profile_is_that_of_vgg16():
    layers = vgg16()
    assert len(layers) == 37 and layers["input"].time == 0  # the input and 36 layers
    assert sum(layer.weights for layer in layers.values()) == 4 * 138_357_544  # float32
    assert layers["conv1"].activation == 4 * 128 * 64 * 224 * 224
    assert layers["linear1"].weights == 4 * (25088 * 4096 + 4096)


@pytest.mark.parametrize(("gpus", "text"), [(4, "0:18 x3 | 18:37"), (16, "0:32 x15 | 32:37")])
def test_at_one_gigabyte_a_second_the_partition_is_the_one_that_was_run(gpus, text):
    layers = list(vgg16().values())
    assert with_replicas(layers, [(gpus, 1e9)]) == Partition.read(text)


def test_with_eight_gpus_the_cut_is_two_layers_further_back():
    names, layers = list(vgg16()), list(vgg16().values())
    found = with_replicas(layers, [(8, 1e9)])
    assert found.replicas == [7, 1] and names[found.stages[1].first] == "conv11"
    ran = Partition.read("0:23 x7 | 23:37")  # stage 1 begins with a ReLU and a pooling layer
    assert names[23:25] == ["relu10", "pool4"]
    assert found.time < ran.bottleneck(layers, 1e9)
