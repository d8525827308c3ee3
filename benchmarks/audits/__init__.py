"""Audits of every claim of dpjax: cases, what attacks find of them, and a command."""
