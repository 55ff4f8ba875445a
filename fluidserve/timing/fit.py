"""Coefficients of polynomial step times from measured ones, by least squares, with their errors."""

import dataclasses

import numpy as np

from fluidserve.errors import InputError
from fluidserve.timing.polynomial import DecodeCoefficients, PrefillCoefficients


@dataclasses.dataclass(frozen=True)
class Fit:
    """A least-squares fit ``times = features @ coefficients``.

    Attributes:
      coefficients: one per column of the features.
      standard_errors: of the coefficients; ``inf`` where there are no rows to spare.
      scatter: standard deviation of a measurement around the fit, s.
      rows: measurements.
      covariance: inverse of ``features.T @ features``.
    """

    coefficients: np.ndarray
    standard_errors: np.ndarray
    scatter: float
    rows: int
    covariance: np.ndarray

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Times at rows of features, s."""
        return np.asarray(features, float) @ self.coefficients

    def band(self, features: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Where a new measurement falls with probability `level`: lower and upper end, s.

        ``t * scatter * sqrt(1 + x (X'X)^-1 x')`` to both sides, with Student's t.

        Source: Draper and Smith, Applied Regression Analysis, 1998, chapter 3.
        """
        from scipy.special import stdtrit

        x = np.asarray(features, float)
        spare = self.rows - len(self.coefficients)
        quantile = float(stdtrit(spare, 0.5 + 0.5 * level)) if spare > 0 else np.inf
        spread = np.sqrt(1.0 + np.einsum("ij,jk,ik->i", x, self.covariance, x))
        middle = self.predict(x)
        half = quantile * self.scatter * spread
        return middle - half, middle + half


def least_squares(features: np.ndarray, times: np.ndarray) -> Fit:
    """Fits times to features.

    Args:
      features: a row per measurement, a column per coefficient.
      times: measured, s.

    Raises:
      InputError: fewer rows than columns, or columns that cannot be told apart.
    """
    x, y = np.asarray(features, float), np.asarray(times, float)
    rows, columns = x.shape
    if rows < columns:
        raise InputError(f"{rows} measurements cannot fix {columns} coefficients; measure more")
    scale = np.linalg.norm(x, axis=0)
    scaled = x / np.where(scale > 0, scale, 1.0)
    if np.linalg.matrix_rank(scaled, tol=1e-9) < columns:
        raise InputError("the measurements do not vary enough to tell the coefficients apart")
    solution = np.linalg.lstsq(scaled, y, rcond=None)[0] / scale
    covariance = np.linalg.inv(scaled.T @ scaled) / np.outer(scale, scale)
    spare = rows - columns
    residual = y - x @ solution
    scatter = float(np.sqrt(residual @ residual / spare)) if spare else np.inf
    errors = scatter * np.sqrt(np.diag(covariance))
    return Fit(solution, errors, scatter, rows, covariance)


def prefill_features(tokens: np.ndarray) -> np.ndarray:
    """Rows ``1, n, n**2`` for single prompts of n tokens."""
    n = np.asarray(tokens, float)
    return np.stack([np.ones_like(n), n, n**2], axis=1)


def decode_features(batch: np.ndarray, context: np.ndarray) -> np.ndarray:
    """Rows ``1, K, b`` for steps of b requests with K tokens of context altogether."""
    b, k = np.asarray(batch, float), np.asarray(context, float)
    return np.stack([np.ones_like(b), k, b], axis=1)


def fit_prefill(tokens: np.ndarray, times: np.ndarray) -> tuple[PrefillCoefficients, Fit]:
    """Prefill coefficients from times of single prompts.

    Args:
      tokens: of each prompt.
      times: of its pass, s.

    Example:
      >>> n = np.array([128, 256, 512, 1024, 2048, 4096])
      >>> found, fit = fit_prefill(n, 0.018 + 1e-4 * n + 7e-9 * n**2)
      >>> f"{found.fixed:.4f} {found.per_token:.2e} {found.per_token_squared:.1e}"
      '0.0180 1.00e-04 7.0e-09'
    """
    fit = least_squares(prefill_features(tokens), times)
    fixed, per_token, squared = (float(x) for x in fit.coefficients)
    return PrefillCoefficients(fixed=fixed, per_token=per_token, per_token_squared=squared), fit


def fit_decode(
    batch: np.ndarray, context: np.ndarray, times: np.ndarray
) -> tuple[DecodeCoefficients, Fit]:
    """Decode coefficients from times of single steps.

    Args:
      batch: requests of each step.
      context: their contexts added up, tokens.
      times: of the step, s.
    """
    fit = least_squares(decode_features(batch, context), times)
    fixed, per_token, per_request = (float(x) for x in fit.coefficients)
    found = DecodeCoefficients(fixed=fixed, per_context_token=per_token, per_request=per_request)
    return found, fit
