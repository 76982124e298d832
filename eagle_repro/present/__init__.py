"""Showing what was measured: figures, tables and progress. Reads records; never imports torch."""
