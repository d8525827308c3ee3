"""The peers: one private gradient, without its noise, by other means than dpjax's.

Each maps `(loss_fn, params, batch)` to what `Method.make` returns: the mean over the
batch, clipped to norm 1.
"""

import warnings

import jax
import numpy as np

L2_CLIP_NORM = 1


def plain(loss_fn, params, batch):
    """The gradient of the mean loss: no influence, not per sample."""

    def grad(params, batch):
        losses = jax.vmap(loss_fn, in_axes=(None, 0))
        return jax.grad(lambda params: losses(params, batch).mean())(params)

    return jax.jit(grad), (params, batch)


def jax_privacy(loss_fn, params, batch, *, microbatch_size):
    """`clipped_grad`, a scan over microbatches."""
    from jax_privacy.clipping import clipped_grad

    options = {"l2_clip_norm": L2_CLIP_NORM, "microbatch_size": microbatch_size}
    options |= {"normalize_by": len(jax.tree.leaves(batch)[0])}
    grad = clipped_grad(loss_fn, keep_batch_dim=False, **options)
    return jax.jit(lambda params, batch: grad(params, batch)), (params, batch)


def optax_aggregate(loss_fn, params, batch):
    """`differentially_private_aggregate` by vmap, which draws noise of stddev zero."""
    import optax

    def grad(params, batch):
        transform = optax.contrib.differentially_private_aggregate(
            l2_norm_clip=L2_CLIP_NORM, noise_multiplier=0.0, key=jax.random.key(0)
        )
        grads = jax.vmap(jax.grad(loss_fn), in_axes=(None, 0))(params, batch)
        return transform.update(grads, transform.init(params))[0]

    return jax.jit(grad), (params, batch)


def _torch_mlp(params):
    from torch import nn

    width = params["w1"].shape[1]
    net = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))
    return net, [params["w1"].T, params["b1"], params["w2"].T, params["b2"]]


def _torch_convolutional(params):
    from torch import nn

    net = nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2, bias=False), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2, bias=False), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(7 * 7 * 64, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    # The first dense layer has (place, channel) in our order.
    kernels = [params[name].transpose(3, 2, 0, 1) for name in ("c1", "c2")]
    dense = params["w1"].reshape(49, 64, -1).transpose(2, 1, 0).reshape(-1, 49 * 64)
    return net, [*kernels, dense, *(params[x].T for x in ("b1", "w2", "b2"))]


def _torch_text_classifier(params):
    import torch
    from torch import nn

    class TextClassifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(*params["embed"].shape)
            self.dense = nn.Linear(*params["w"].shape)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.dense(self.embed(tokens).mean(dim=1))

    return TextClassifier(), [params["embed"], params["w"].T, params["b"]]


# The transformer is none of them: Opacus takes no parameter that is used twice.
TORCH = {
    "mlp": _torch_mlp,
    "convolutional": _torch_convolutional,
    "text_classifier": _torch_text_classifier,
}


def opacus(loss_fn, params, batch, *, model, is_ghost):
    """Opacus, on the same model: hooks that store gradients, or ghost clipping."""
    del loss_fn  # which is written again for PyTorch
    import torch
    from opacus import GradSampleModule
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net, weights = TORCH[model](jax.tree.map(np.asarray, params))
    with torch.no_grad():
        for parameter, weight in zip(net.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(np.array(weight)))
    features, labels = (np.array(x) for x in batch)
    if features.ndim == 4:
        # With the strides of this order: Opacus reads images of others wrongly.
        features = np.array(features.transpose(0, 3, 1, 2), order="C")
    if features.dtype == np.int32:  # tokens
        features = features.astype(np.int64)
    x = torch.from_numpy(features).to(device)
    y = torch.from_numpy(labels).long().to(device)
    settings = {"noise_multiplier": 0.0, "max_grad_norm": L2_CLIP_NORM}
    settings["expected_batch_size"] = len(y)
    loss = torch.nn.CrossEntropyLoss()
    net = net.to(device)
    sgd = torch.optim.SGD(net.parameters(), lr=0.0)
    if is_ghost:
        options = {"max_grad_norm": L2_CLIP_NORM, "use_ghost_clipping": True}
        net = GradSampleModuleFastGradientClipping(net, **options)
        optimizer = DPOptimizerFastGradientClipping(sgd, **settings)
        loss = DPLossFastGradientClipping(net, optimizer, loss)
    else:
        net = GradSampleModule(net)
        optimizer = DPOptimizer(sgd, **settings)

    def step():
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.pre_step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return [parameter.grad for parameter in net.parameters()]

    return step, ()
