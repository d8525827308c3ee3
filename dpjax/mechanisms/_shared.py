"""What other layers use of this one, besides its public names."""

from dpjax.mechanisms._chacha import key_of_words

__all__ = ["key_of_words"]
