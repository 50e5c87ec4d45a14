"""Mixture of experts on one device: gates, losses that balance, capacity, and the plain layer."""

from lib.single.experts.layer import MoE, auxiliary_loss, with_experts

__all__ = ["MoE", "auxiliary_loss", "with_experts"]
