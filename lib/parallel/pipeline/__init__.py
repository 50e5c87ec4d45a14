"""Pipeline parallelism: each rank has some stages of the model, which microbatches pass through."""

from lib.parallel.pipeline.mixed import MixedPipeline
from lib.parallel.pipeline.pipedream import PipeDream
from lib.parallel.pipeline.runtime import Pipeline, stage_costs

__all__ = ["MixedPipeline", "PipeDream", "Pipeline", "stage_costs"]
