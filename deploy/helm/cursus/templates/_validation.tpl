{{/* What a schema cannot say. All that is wrong is told together, a sentence each. */}}
{{- define "cursus.validate" -}}
{{- $wrong := list -}}
{{- $v := .Values -}}
{{- if gt (int $v.broker.replicaCount) 1 }}
{{- $wrong = append $wrong "broker.replicaCount is 1, or 0 to stop it: brokers do not replicate to each other until the cluster engine is configured, so a second one would be another, empty log." }}
{{- end }}
{{- range $key := splitList "," (include "cursus.broker.ownKeys" .) }}
{{- if hasKey $v.broker.config $key }}
{{- $wrong = append $wrong (printf "broker.config.%s is set by the chart; see broker.drainSeconds, broker.profile, broker.persistence, listenHost and tls." $key) }}
{{- end }}
{{- end }}
{{- range $key := splitList "," (include "cursus.gateway.ownKeys" .) }}
{{- if hasKey $v.gateway.config $key }}
{{- $wrong = append $wrong (printf "gateway.config.%s is set by the chart; see gateway.drainSeconds, gateway.service, gateway.listeners, gateway.advertisedHost, listenHost and tls." $key) }}
{{- end }}
{{- end }}
{{- range $key := list "tls_ca" "tls_cert" "tls_key" }}
{{- if hasKey (default (dict) $v.gateway.config.upstream) $key }}
{{- $wrong = append $wrong (printf "gateway.config.upstream.%s is set by the chart; see tls." $key) }}
{{- end }}
{{- end }}
{{- if and $v.tls.enabled (not $v.tls.existingSecret) (not $v.tls.certManager.enabled) }}
{{- $wrong = append $wrong "tls.enabled needs tls.existingSecret or tls.certManager.enabled." }}
{{- end }}
{{- if and $v.tls.existingSecret $v.tls.certManager.enabled }}
{{- $wrong = append $wrong "tls.existingSecret and tls.certManager.enabled exclude each other." }}
{{- end }}
{{- if and $v.tls.certManager.enabled (not $v.tls.certManager.issuerRef.name) }}
{{- $wrong = append $wrong "tls.certManager.enabled needs tls.certManager.issuerRef.name." }}
{{- end }}
{{- if and $v.tls.mutual (not $v.tls.enabled) }}
{{- $wrong = append $wrong "tls.mutual needs tls.enabled." }}
{{- end }}
{{- if and $v.tls.enabled $v.tls.mutual (not $v.tls.clientSecret) (not $v.tls.certManager.enabled) }}
{{- $wrong = append $wrong "tls.mutual needs tls.clientSecret, the certificate that gateways and jobs show, or tls.certManager.enabled." }}
{{- end }}
{{- if and $v.gateway.tls.enabled (not $v.gateway.tls.existingSecret) (not $v.tls.certManager.enabled) }}
{{- $wrong = append $wrong "gateway.tls.enabled needs gateway.tls.existingSecret or tls.certManager.enabled." }}
{{- end }}
{{- if and $v.broker.persistence.existingClaim (not $v.broker.persistence.enabled) }}
{{- $wrong = append $wrong "broker.persistence.existingClaim needs broker.persistence.enabled." }}
{{- end }}
{{- if and $v.gateway.autoscaling.enabled (gt (int $v.gateway.autoscaling.minReplicas) (int $v.gateway.autoscaling.maxReplicas)) }}
{{- $wrong = append $wrong "gateway.autoscaling.minReplicas is above maxReplicas." }}
{{- end }}
{{- if and $v.gateway.autoscaling.enabled (not $v.gateway.autoscaling.targetCPU) (not $v.gateway.autoscaling.targetMemory) }}
{{- $wrong = append $wrong "gateway.autoscaling.enabled needs targetCPU or targetMemory." }}
{{- end }}
{{- $ports := list 9000 9080 9100 }}
{{- range $v.gateway.listeners }}
{{- if has (int .port) $ports }}
{{- $wrong = append $wrong (printf "gateway.listeners: port %d is taken." (int .port)) }}
{{- end }}
{{- $ports = append $ports (int .port) }}
{{- end }}
{{- $names := list }}
{{- range $v.provisioning.topics }}
{{- if has .name $names }}
{{- $wrong = append $wrong (printf "provisioning.topics names %s twice." .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- if $v.spark.archive.enabled }}
{{- range $key := list "topics" "lake" "checkpoint" }}
{{- if not (index $v.spark.archive $key) }}
{{- $wrong = append $wrong (printf "spark.archive.enabled needs spark.archive.%s." $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- if $wrong }}
{{- fail (printf "\n\nThe values cannot be meant:\n  - %s\n" (join "\n  - " $wrong)) }}
{{- end }}
{{- end -}}
