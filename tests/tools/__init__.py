"""Tests of the offline tools."""
