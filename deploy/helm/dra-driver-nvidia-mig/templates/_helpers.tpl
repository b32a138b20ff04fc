{{- define "mig.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* At most 40 characters, so that the components' names below stay DNS labels. */ -}}
{{- define "mig.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "mig.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "mig.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "mig.controller" -}}{{ include "mig.fullname" . }}-controller{{- end -}}
{{- define "mig.plugin" -}}{{ include "mig.fullname" . }}-kubelet-plugin{{- end -}}

{{- define "mig.selector" -}}
app.kubernetes.io/name: {{ include "mig.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "mig.labels" -}}
{{ include "mig.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* image: (list $ .Values.controller.image) */ -}}
{{- define "mig.image" -}}
{{- $root := index . 0 -}}{{- $image := index . 1 -}}
{{- with $root.Values.image.registry }}{{ . }}/{{ end -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end -}}

{{- /* Of a container that serves metrics and probes. Kubelet restarts it when it is dead for a minute,
which no GPU and no API server that is away makes it. */ -}}
{{- define "mig.probes" -}}
ports:
  - {name: metrics, containerPort: {{ .Values.metrics.port }}, protocol: TCP}
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 10
  failureThreshold: 2
{{- end -}}

{{- /* CEL: the request comes from a plugin of this release. */ -}}
{{- define "mig.isPlugin" -}}
request.userInfo.username == "system:serviceaccount:{{ .Release.Namespace }}:{{ include "mig.plugin" . }}"
{{- end -}}

{{- /* CEL: the node that the caller's token is bound to; tokens of pods name it. */ -}}
{{- define "mig.callerNode" -}}
request.userInfo.extra[?"authentication.kubernetes.io/node-name"][0].orValue("")
{{- end -}}

{{- /* The version in which the API server has MutatingAdmissionPolicies, if it does. Kubernetes 1.34
takes no new ones with the functions on lists that those here need. */ -}}
{{- define "mig.mutatingPolicies" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- if semverCompare ">=1.36-0" $version -}}
admissionregistration.k8s.io/v1
{{- else if and (semverCompare ">=1.35-0" $version) (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy") -}}
admissionregistration.k8s.io/v1beta1
{{- end -}}
{{- end -}}

{{- /* "true" where claims get the controller's finalizer when they are created. */ -}}
{{- define "mig.finalizerAtCreation" -}}
{{- if and .Values.finalizerAtCreation.enabled (eq .Values.allocator "controller") (include "mig.mutatingPolicies" .) -}}
true
{{- end -}}
{{- end -}}

{{- /* Further arguments of a container, at the end of its list. */ -}}
{{- define "mig.extraArgs" -}}
{{- range .extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- /* A list of XIDs as the option takes it: numbers, or a word. */ -}}
{{- define "mig.xids" -}}
{{- if kindIs "slice" . }}{{- $all := list }}{{ range . }}{{ $all = append $all (int .) }}{{ end }}{{ join "," $all }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{- /* CEL, as a match condition: a container asks for slices by its limits. */ -}}
{{- define "mig.asksByLimits" -}}
name: asks-by-limits
expression: |-
  object.spec.containers.exists(each, each.?resources.?limits.orValue({}).exists(key,
    key.startsWith("nvidia.com/mig-") || key.startsWith("nvidia.com/gpumem") || key == "nvidia.com/gpucores")) ||
  object.spec.?initContainers.orValue([]).exists(each, each.?resources.?limits.orValue({}).exists(key,
    key.startsWith("nvidia.com/mig-") || key.startsWith("nvidia.com/gpumem") || key == "nvidia.com/gpucores"))
{{- end -}}

{{- /* The same: it is no pod that a kubelet made by itself, which may have no claims. */ -}}
{{- define "mig.noMirror" -}}
name: no-mirror
expression: '!("kubernetes.io/config.mirror" in object.metadata.?annotations.orValue({}))'
{{- end -}}

{{- /* Files of classes of nodes, for whoever reads them: the directory, and the ConfigMaps as a JSON list. */ -}}
{{- define "mig.classFolder" -}}/etc/mig.dra.dev/node-classes{{- end -}}
{{- define "mig.classConfigMaps" -}}
{{- $own := ternary (list (printf "%s-classes" (include "mig.plugin" .))) list (not (empty .Values.nodeClasses.classes)) -}}
{{- concat $own .Values.nodeClasses.configMaps | toJson -}}
{{- end -}}
