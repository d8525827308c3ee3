"""Tests of dpjax: a package, so that no other of this name is imported instead."""
