"""The function app of the claims, whole."""

from claim import claims

from sas import function_app

app = function_app(claims)
