"""What other layers use of this one, besides its public names."""

from dpjax.mechanisms._additive import gaussian_of_padded, padded
from dpjax.mechanisms._chacha import key_of_words

__all__ = ["gaussian_of_padded", "key_of_words", "padded"]
