#!/bin/sh
# What now is where, and what to try first.
set -eu
cat <<TOLD
The functions run in ${SERVICE_ORDERS_NAME:-the function app}, resource group ${AZURE_RESOURCE_GROUP:-?}.
Service Bus: ${ServiceBus__fullyQualifiedNamespace:-?}
State store: ${SAS_TABLES__endpoint:-?}
Response queues: ${SAS_RESPONSE_QUEUES:-?}
Rights on Service Bus take up to a minute to spread: the first messages may wait that long.
Look at the workbook "Orders: Scheduler Agent Supervisor" in the resource group, and at the alerts.
TOLD
