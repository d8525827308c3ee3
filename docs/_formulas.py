"""Formulas of docstrings, as plain text in a terminal and as TeX on the site."""

# Blocks, with single spaces, or parts of a line.
FORMULAS = {
    "posterior = p b / (p b + (1 - p) a).": (
        r"\text{posterior} = \frac{p\,b}{p\,b + (1 - p)\,a}."
    ),
    "tradeoff(a) = inf over epsilon of e^epsilon a + delta(epsilon),": (
        r"\text{tradeoff}(a) = \inf_{\varepsilon}"
        r"\; e^{\varepsilon} a + \delta(\varepsilon),"
    ),
    "min(e^epsilon a + delta, 1 - e^-epsilon (1 - delta - a))": (
        r"\min(e^{\varepsilon} a + \delta,"
        r"\; 1 - e^{-\varepsilon}(1 - \delta - a))"
    ),
    "epsilon >= max(log((t - delta) / f), log((1 - f - delta) / (1 - t))),": (
        r"\varepsilon \ge \max\left(\log\frac{t - \delta}{f},"
        r"\; \log\frac{1 - f - \delta}{1 - t}\right),"
    ),
    "mu >= Phi^-1(t) - Phi^-1(f)": r"\mu \ge \Phi^{-1}(t) - \Phi^{-1}(f)",
    "threshold <- threshold·exp(-learning_rate·(b - quantile)),": (
        r"\text{threshold} \leftarrow \text{threshold}"
        r" \cdot \exp(-\text{learning_rate}\cdot(b - \text{quantile})),"
    ),
    "h_beta(a) = E phi(a (1 + Z/sqrt(beta)))": (
        r"h_\beta(a) = \mathbb{E}\, \varphi(a(1 + Z/\sqrt{\beta}))"
    ),
    "phi(x) = x - x^3/6": r"\varphi(x) = x - x^3/6",
    "(2 sqrt(2)/3) erf(sqrt(beta/2))": (
        r"\tfrac{2\sqrt{2}}{3} \operatorname{erf}(\sqrt{\beta/2})"
    ),
    "max_k e^(-kt) A_k": r"\max_k e^{-kt} A_k",
    "A_k = min(upper - lower, max_l (x_(n-m+1+k-l) - x_(m+1-l)) / (n - 2m)),": (
        r"A_k = \min\left(\text{upper} - \text{lower},\;"
        r" \max_l \frac{x_{(n-m+1+k-l)} - x_{(m+1-l)}}{n - 2m}\right),"
    ),
    "|f(x) - f(x')| <= min(S(x), S(x')), S(x) <= e^t S(x'),": (
        r"\lvert f(x) - f(x')\rvert \le \min(S(x), S(x')),"
        r" \qquad S(x) \le e^t S(x'),"
    ),
    "(e^(q eta) - 1) / q + y (e^((1 - p) eta) - 1) / (p - 1),": (
        r"\frac{e^{q\eta} - 1}{q} + y\,\frac{e^{(1 - p)\eta} - 1}{p - 1},"
    ),
    "epsilon = s (4 + 3 sigma^2) / (6 sigma) + sqrt(t (t/sigma^2 + 1/sigma + 2)),": (
        r"\varepsilon = \frac{s(4 + 3\sigma^2)}{6\sigma}"
        r" + \sqrt{t\left(\frac{t}{\sigma^2} + \frac{1}{\sigma} + 2\right)},"
    ),
    "epsilon = t / sigma + exp(1.5 sigma^2) s,": (
        r"\varepsilon = \frac{t}{\sigma} + e^{1.5\sigma^2} s,"
    ),
    "scale·sqrt((exp(2 sigma^2) - 1) / 2) / sigma": (
        r"\frac{\text{scale}}{\sigma}\sqrt{\tfrac{1}{2}(e^{2\sigma^2} - 1)}"
    ),
    "u(j) = -max(0, #{x <= lower edge} + 1 - r, r - #{x <= upper edge}),": (
        r"u(j) = -\max(0,\; \#\{x \le \text{lower edge}\} + 1 - r,"
        r"\; r - \#\{x \le \text{upper edge}\}),"
    ),
    "(1/2)epsilon^2-zCDP": r"\tfrac{1}{2}\varepsilon^2\text{-zCDP}",
    "(epsilon^2/8)-zCDP": r"(\varepsilon^2/8)\text{-zCDP}",
    "(epsilon^2/2)-zCDP": r"(\varepsilon^2/2)\text{-zCDP}",
    "(D^2 / (2 sigma^2))-zCDP": r"(D^2 / 2\sigma^2)\text{-zCDP}",
    "rho = s lam^2 / (2 g^2) + s lam^2 / (2 sigma^2)": (
        r"\rho = \frac{s\lambda^2}{2 g^2} + \frac{s\lambda^2}{2\sigma^2}"
    ),
    "s (2 lam^2/g^2 + lam^2/sigma^2)": (
        r"s\left(\frac{2\lambda^2}{g^2} + \frac{\lambda^2}{\sigma^2}\right)"
    ),
    "z^-2 = z_gradient^-2 + z_loss^-2": (
        r"z^{-2} = z_\text{gradient}^{-2} + z_\text{loss}^{-2}"
    ),
    "sqrt(2 log(1.25/delta)) / epsilon": r"\sqrt{2\log(1.25/\delta)} / \varepsilon",
}
