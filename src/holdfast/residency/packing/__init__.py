"""Weights made smaller without losing a bit."""
