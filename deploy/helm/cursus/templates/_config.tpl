{{/* The settings files. What the chart decides itself may not be in `config`: _validation.tpl refuses it. */}}
{{- define "cursus.broker.ownKeys" -}}data_dir,log_dir,host,grpc_port,health_port,metrics_port,broker_id,grace_ms,tls,profile{{- end -}}
{{- define "cursus.gateway.ownKeys" -}}broker,host,port,health_port,metrics_port,advertised_host,advertised_port,listen,grace_ms,tls{{- end -}}

{{- define "cursus.broker.config" -}}
{{- $own := dict
  "data_dir" "/var/lib/cursus"
  "host" .Values.listenHost
  "grpc_port" 50051
  "health_port" 9081
  "metrics_port" 9101
  "grace_ms" (printf "%ds" (int .Values.broker.drainSeconds))
-}}
{{- with .Values.broker.profile }}{{- $_ := set $own "profile" . }}{{- end }}
{{- if .Values.tls.enabled }}
{{- $tls := dict "cert" "/etc/cursus/tls/tls.crt" "key" "/etc/cursus/tls/tls.key" }}
{{- if .Values.tls.mutual }}{{- $_ := set $tls "client_ca" "/etc/cursus/tls/ca.crt" }}{{- end }}
{{- $_ := set $own "tls" $tls }}
{{- end }}
{{- toYaml (mergeOverwrite (deepCopy .Values.broker.config) $own) }}
{{- end -}}

{{- define "cursus.gateway.config" -}}
{{- $service := printf "%s.%s.svc.%s" (include "cursus.gateway.name" .) .Release.Namespace .Values.clusterDomain }}
{{- $own := dict
  "broker" (list (include "cursus.broker.address" .))
  "host" .Values.listenHost
  "port" 9000
  "health_port" 9080
  "metrics_port" 9100
  "advertised_host" (default $service .Values.gateway.advertisedHost)
  "grace_ms" (printf "%ds" (int .Values.gateway.drainSeconds))
-}}
{{- if ne (int .Values.gateway.service.ports.tcp) 9000 }}
{{- $_ := set $own "advertised_port" (int .Values.gateway.service.ports.tcp) }}
{{- end }}
{{- with .Values.gateway.listeners }}
{{- $listen := list }}
{{- range . }}{{- $listen = append $listen (printf "%d:%s" (int .port) .profile) }}{{- end }}
{{- $_ := set $own "listen" $listen }}
{{- end }}
{{- if .Values.gateway.tls.enabled }}
{{- $_ := set $own "tls" (dict "cert" "/etc/cursus/tls/tls.crt" "key" "/etc/cursus/tls/tls.key") }}
{{- end }}
{{- if .Values.tls.enabled }}
{{- $upstream := dict "tls_ca" "/etc/cursus/broker-tls/ca.crt" }}
{{- if .Values.tls.mutual }}
{{- $_ := set $upstream "tls_cert" "/etc/cursus/broker-tls/tls.crt" }}
{{- $_ := set $upstream "tls_key" "/etc/cursus/broker-tls/tls.key" }}
{{- end }}
{{- $_ := set $own "upstream" $upstream }}
{{- end }}
{{- toYaml (mergeOverwrite (deepCopy .Values.gateway.config) $own) }}
{{- end -}}
