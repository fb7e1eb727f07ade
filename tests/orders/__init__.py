"""Tests of the business in ``orders/``: replaced together with it. All others are the pattern's."""
