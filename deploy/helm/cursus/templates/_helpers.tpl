{{/* Names. 40 characters leave room for the longest suffix within the 63 of a label. */}}
{{- define "cursus.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "cursus.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cursus.broker.name" -}}{{ include "cursus.fullname" . }}-broker{{- end -}}
{{- define "cursus.broker.headless" -}}{{ include "cursus.fullname" . }}-broker-headless{{- end -}}
{{- define "cursus.gateway.name" -}}{{ include "cursus.fullname" . }}-gateway{{- end -}}

{{- define "cursus.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "cursus.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Where clients inside the cluster find the broker: by its own name, which it also advertises. */}}
{{- define "cursus.broker.host" -}}
{{- printf "%s-0.%s.%s.svc.%s" (include "cursus.broker.name" .) (include "cursus.broker.headless" .) .Release.Namespace .Values.clusterDomain -}}
{{- end -}}
{{- define "cursus.broker.address" -}}{{ include "cursus.broker.host" . }}:50051{{- end -}}

{{/* What selects pods: never changes over the life of a release. Takes a dict of root and component. */}}
{{- define "cursus.selectorLabels" -}}
app.kubernetes.io/name: {{ include "cursus.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "cursus.labels" -}}
{{ include "cursus.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods: without versions, so that only a changed pod is a new one. */}}
{{- define "cursus.podLabels" -}}
{{ include "cursus.selectorLabels" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Annotations of an object: the common ones and its own, if there are any. Takes a dict of root and own. */}}
{{- define "cursus.annotations" -}}
{{- with merge (dict) (default (dict) .own) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* REGISTRY/REPOSITORY:TAG or @DIGEST. Takes a dict of root and image. */}}
{{- define "cursus.image" -}}
{{- $registry := default .root.Values.global.imageRegistry .image.registry | trimSuffix "/" -}}
{{- if $registry }}{{ $registry }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ default .root.Chart.AppVersion .image.tag }}{{ end -}}
{{- end -}}

{{- define "cursus.pullSecrets" -}}
{{- with concat .root.Values.global.imagePullSecrets .image.pullSecrets | uniq }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* What all pods have in common. Takes a dict of root and image. */}}
{{- define "cursus.pod" -}}
serviceAccountName: {{ include "cursus.serviceAccountName" .root }}
automountServiceAccountToken: false
# A Service named like the release would set CURSUS_PORT=tcp://…, which the gateway would read as its port.
enableServiceLinks: false
{{- include "cursus.pullSecrets" . }}
{{- end -}}

{{/* Where a pod runs. Takes a dict of root, component and values. */}}
{{- define "cursus.placement" -}}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.topologySpreadConstraints }}
{{- $selector := dict "labelSelector" (dict "matchLabels" (include "cursus.selectorLabels" $ | fromYaml)) }}
topologySpreadConstraints:
  {{- range . }}
  - {{- toYaml (merge (deepCopy .) $selector) | nindent 4 }}
  {{- end }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- end -}}

{{/* Probes by HTTP: they need no client certificates. Takes the component's values. */}}
{{- define "cursus.probes" -}}
{{- $paths := dict "startupProbe" "/live" "livenessProbe" "/live" "readinessProbe" "/ready" }}
{{- range $name := list "startupProbe" "livenessProbe" "readinessProbe" }}
{{- $probe := index $ $name }}
{{- if $probe.enabled }}
{{ $name }}:
  httpGet:
    path: {{ index $paths $name }}
    port: health
  {{- toYaml (omit $probe "enabled") | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* SIGTERM comes after preStop, and the kernel's signal after the sum of the three. Takes the component's values. */}}
{{- define "cursus.grace" -}}{{ add .preStopSeconds .drainSeconds .closingSeconds }}{{- end -}}
{{- define "cursus.preStop" -}}
{{- if gt (int .preStopSeconds) 0 }}
lifecycle:
  preStop:
    sleep:
      seconds: {{ .preStopSeconds }}
{{- end }}
{{- end -}}

{{/* Secrets of TLS. */}}
{{- define "cursus.tls.brokerSecret" -}}{{ default (printf "%s-tls" (include "cursus.broker.name" .)) .Values.tls.existingSecret }}{{- end -}}
{{- define "cursus.tls.clientSecret" -}}{{ default (printf "%s-client-tls" (include "cursus.fullname" .)) .Values.tls.clientSecret }}{{- end -}}
{{- define "cursus.tls.gatewaySecret" -}}{{ default (printf "%s-tls" (include "cursus.gateway.name" .)) .Values.gateway.tls.existingSecret }}{{- end -}}

{{/* The volume by which clients of the broker know it, and with mutual TLS show who they are. */}}
{{- define "cursus.tls.clientVolume" -}}
{{- if .Values.tls.enabled }}
- name: broker-tls
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ include "cursus.tls.brokerSecret" . }}
          items:
            - key: ca.crt
              path: ca.crt
      {{- if .Values.tls.mutual }}
      - secret:
          name: {{ include "cursus.tls.clientSecret" . }}
          items:
            - key: tls.crt
              path: tls.crt
            - key: tls.key
              path: tls.key
      {{- end }}
{{- end }}
{{- end -}}
{{- define "cursus.tls.clientMount" -}}
{{- if .Values.tls.enabled }}
- name: broker-tls
  mountPath: /etc/cursus/broker-tls
  readOnly: true
{{- end }}
{{- end -}}

{{/* How the command line and the jobs reach the broker. */}}
{{- define "cursus.clientEnvironment" -}}
- name: CURSUS_BROKER
  value: {{ include "cursus.broker.address" . }}
{{- if .Values.tls.enabled }}
- name: CURSUS_CLI_TLS_CA
  value: /etc/cursus/broker-tls/ca.crt
{{- if .Values.tls.mutual }}
- name: CURSUS_CLI_TLS_CERT
  value: /etc/cursus/broker-tls/tls.crt
- name: CURSUS_CLI_TLS_KEY
  value: /etc/cursus/broker-tls/tls.key
{{- end }}
{{- end }}
{{- end -}}

{{/* The pod of a command that ends: provisioning and tests. Takes a dict of root, name, command, and perhaps script. */}}
{{- define "cursus.commandPod" -}}
{{- include "cursus.pod" (dict "root" .root "image" .root.Values.cli.image) }}
restartPolicy: {{ default "Never" .restartPolicy }}
securityContext:
  {{- toYaml .root.Values.gateway.podSecurityContext | nindent 2 }}
containers:
  - name: {{ .name }}
    image: {{ include "cursus.image" (dict "root" .root "image" .root.Values.cli.image) }}
    imagePullPolicy: {{ .root.Values.cli.image.pullPolicy }}
    securityContext:
      {{- toYaml .root.Values.gateway.containerSecurityContext | nindent 6 }}
    command:
      {{- toYaml .command | nindent 6 }}
    env:
      {{- include "cursus.clientEnvironment" .root | nindent 6 }}
    resources:
      {{- toYaml .root.Values.cli.resources | nindent 6 }}
    volumeMounts:
      - name: tmp
        mountPath: /tmp
      {{- with .configMap }}
      - name: files
        mountPath: /etc/cursus/files
        readOnly: true
      {{- end }}
      {{- include "cursus.tls.clientMount" .root | nindent 6 }}
volumes:
  - name: tmp
    emptyDir:
      sizeLimit: 64Mi
  {{- with .configMap }}
  - name: files
    configMap:
      name: {{ . }}
  {{- end }}
  {{- include "cursus.tls.clientVolume" .root | nindent 2 }}
{{- end -}}
