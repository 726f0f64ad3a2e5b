"""Scoring pairs: arrays in, scores out.

cross_fit.py        the estimator: folds, `CrossFitScorer.fit_score`, `fit`, `score`
fold_model.py       the ensemble of one fold: ridge_cca.py, weighted by clean probabilities, dual_encoder.py
negatives.py        random negatives, of which the null distribution is made, and near ones
candidates.py       the statistic of a pair: softmax among candidates
calibration.py      from statistics to P(match) and the noise rate
cutoff.py           from P(match) to flags
fold_store.py       finished folds and fitted models on disk
"""
