"""What a run does as OpenTelemetry spans. Training does not need it: it reads the files of the record and of the story.

    step_traces   from what members recorded to traces, one a step. Pure.
    settings      what the environment says, as everywhere else with OpenTelemetry. Pure.
    export        hands them to an exporter, as OpenTelemetry's own values
    process       follows a run that goes on; what `shoal run --otel` starts

opentelemetry is imported by `export` alone.
"""
