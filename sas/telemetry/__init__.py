"""What the code tells of itself: spans, metrics and attributes of log lines.

OpenTelemetry's API alone, which does nothing until ``sas.adapters.telemetry`` gives it
somewhere to tell it. Names are held to ``infra/telemetry-fields.json`` by a test. Nothing
here is ever given a payload, a result, a key or a connection string.
"""
