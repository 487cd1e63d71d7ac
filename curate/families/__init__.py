"""Families of signals that are computed only for sources whose rules or difficulties name one of their columns."""
