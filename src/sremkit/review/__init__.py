"""Review of an audit in the browser: decisions on pairs, stored in the audit folder."""
