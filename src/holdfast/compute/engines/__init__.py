"""Engines, one folder or file each; `holdfast.compute.engine` has their registry."""
