"""Stages that several ranks share: what these ranks send, and profiles to choose from."""
