"""Functions that other ops make up: what `nn` calls."""

from __future__ import annotations
