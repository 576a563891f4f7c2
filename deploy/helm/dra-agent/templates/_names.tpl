{{/* Names and labels that several objects use. */}}

{{- define "dra-agent.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "dra-agent.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "dra-agent.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "dra-agent.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Roles and policies are cluster-scoped: two releases with the same name in different namespaces must not share them. */}}
{{- define "dra-agent.clusterName" -}}
{{- if eq .Release.Namespace (include "dra-agent.fullname" .) }}
{{- include "dra-agent.fullname" . }}
{{- else }}
{{- printf "%s-%s" .Release.Namespace (include "dra-agent.fullname" .) }}
{{- end }}
{{- end }}

{{- define "dra-agent.serviceAccount" -}}
{{- if .Values.serviceAccount.name }}
{{- .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create }}
{{- include "dra-agent.fullname" . }}
{{- else }}
{{- fail "serviceAccount.name: set the ServiceAccount for the agent, or let the chart create one (serviceAccount.create)" }}
{{- end }}
{{- end }}

{{- define "dra-agent.selectorLabels" -}}
app.kubernetes.io/name: {{ include "dra-agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dra-agent.labels" -}}
{{ include "dra-agent.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* The labels of an object, with additional ones from a value, which cannot repeat them. */}}
{{- define "dra-agent.labelsWith" -}}
{{- $labels := include "dra-agent.labels" .root | fromYaml }}
{{- range $key, $value := .labels }}
{{- if hasKey $labels $key }}
{{- fail (printf "%s: the chart sets %s" $.value $key) }}
{{- end }}
{{- $_ := set $labels $key $value }}
{{- end }}
{{- toYaml $labels }}
{{- end }}

{{- define "dra-agent.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{/* The labels of all agents, of every pool. */}}
{{- define "dra-agent.allAgents" -}}
{{- if .Values.pools -}}
matchLabels:
  app.kubernetes.io/instance: {{ .Release.Name }}
matchExpressions:
- key: app.kubernetes.io/name
  operator: In
  values: [{{ include "dra-agent.name" . }}, {{ include "dra-agent.poolLabel" . }}]
{{- else -}}
matchLabels:
  {{- include "dra-agent.selectorLabels" . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The files that protect /metrics, for a pod that serves it: variables, mounts and volumes. */}}
{{- define "dra-agent.metricsEnv" -}}
{{- if .Values.metrics.tlsSecret }}
- name: DRA_AGENT_METRICS_TLS_CERT
  value: /etc/metrics-tls/tls.crt
- name: DRA_AGENT_METRICS_TLS_KEY
  value: /etc/metrics-tls/tls.key
{{- end }}
{{- if .Values.metrics.tokenSecret }}
- name: DRA_AGENT_METRICS_TOKEN_FILE
  value: {{ printf "/etc/metrics-token/%s" .Values.metrics.tokenKey | quote }}
{{- end }}
{{- end }}

{{- define "dra-agent.metricsMounts" -}}
{{- if .Values.metrics.tlsSecret }}
- name: metrics-tls
  mountPath: /etc/metrics-tls
  readOnly: true
{{- end }}
{{- if .Values.metrics.tokenSecret }}
- name: metrics-token
  mountPath: /etc/metrics-token
  readOnly: true
{{- end }}
{{- end }}

{{- define "dra-agent.metricsVolumes" -}}
{{- with .Values.metrics.tlsSecret }}
- name: metrics-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
    - key: tls.crt
      path: tls.crt
    - key: tls.key
      path: tls.key
{{- end }}
{{- with .Values.metrics.tokenSecret }}
- name: metrics-token
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
    - key: {{ $.Values.metrics.tokenKey | quote }}
      path: {{ $.Values.metrics.tokenKey | quote }}
{{- end }}
{{- end }}
