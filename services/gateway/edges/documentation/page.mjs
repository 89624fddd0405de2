// The page: shows the models of the OpenAPI document, and sends requests to them.

import { bodyOf, curlOf, headersOf, isLong, modelsOf, shown } from "./request.mjs";

const at = id => document.getElementById(id);
const root = new URL(".", document.baseURI);

function element(tag, text, parent) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function field(tag, label, value, parent) {
  const box = element("label", `${label} `, parent);
  const made = element(tag, undefined, box);
  made.value = value;
  made.spellcheck = false;
  return made;
}

let models = [];
let fields = [];

function showInputs() {
  const model = models[at("model").selectedIndex];
  at("outputs").textContent = model.outputs;
  at("inputs").replaceChildren();
  at("result").hidden = at("same").hidden = true;
  at("send").disabled = !model.inputs;
  if (!model.inputs) {
    element("p", "An input has no JSON form: send binary data, as by tritonclient.", at("inputs"));
  }
  fields = (model.inputs || []).map(input => {
    const box = element("fieldset", undefined, at("inputs"));
    element("legend", input.isNeeded ? input.words : `${input.words} (optional)`, box);
    const shape = field("input", "Shape", input.shape, box);
    const data = field("textarea", 'Data: a JSON list, nested or flat, "zeros" or "random"', input.data, box);
    return { input, shape, data };
  });
}

async function send() {
  const model = models[at("model").selectedIndex];
  const url = new URL(model.path.slice(1), root).href;
  const key = at("key").value.trim();
  let body;
  at("result").hidden = false;
  at("answer").textContent = "";
  try {
    body = bodyOf(fields.map(({ input, shape, data }) => (
      { name: input.name, datatype: input.datatype, shape: shape.value, data: data.value })));
  } catch (error) {
    at("status").textContent = error.message;
    at("same").hidden = true;
    return;
  }
  showCurl(url, body, key);
  at("status").textContent = "…";
  const headers = { "content-type": "application/json", ...headersOf(key) };
  const began = performance.now();
  try {
    const reply = await fetch(url, { method: "POST", headers, body });
    const text = await reply.text();
    const ms = Math.round(performance.now() - began);
    at("status").textContent = `${reply.status} ${reply.statusText}, ${ms} ms`;
    at("answer").textContent = shown(text);
  } catch (error) {
    at("status").textContent = `no answer: ${error.message}`;
  }
}

function showCurl(url, body, key) {
  at("same").hidden = false;
  at("curl").textContent = curlOf(url, body, Boolean(key));
  const file = at("body");
  if (file.href) URL.revokeObjectURL(file.href);
  file.hidden = !isLong(body);
  if (!file.hidden) file.href = URL.createObjectURL(new Blob([body]));
}

function showOperations(api) {
  at("operations").replaceChildren();
  for (const [path, item] of Object.entries(api.paths)) {
    for (const method of ["get", "post", "delete"]) {
      const operation = item[method];
      if (!operation || operation["x-model"]) continue;
      const box = element("details", undefined, at("operations"));
      const head = element("summary", undefined, box);
      element("b", method.toUpperCase(), head);
      element("code", path, head);
      head.append(` ${operation.summary}`);
      const table = element("table", undefined, box);
      for (const [status, response] of Object.entries(operation.responses)) {
        const row = element("tr", undefined, table);
        element("td", status, row);
        element("td", response.description, row);
      }
    }
  }
}

async function load() {
  const reply = await fetch(new URL("openapi.json", root), { headers: headersOf(at("key").value.trim()) });
  const api = await reply.json();
  if (!reply.ok) {
    at("about").textContent = `${reply.status}: ${api.error}`;
    return;
  }
  at("about").textContent = `${api.info.description} Server ${api.info.version}.`;
  models = modelsOf(api);
  at("none").hidden = models.length > 0;
  at("request").hidden = models.length === 0;
  at("model").replaceChildren();
  for (const model of models) element("option", `${model.name} (version ${model.version})`, at("model"));
  showOperations(api);
  if (models.length) showInputs();
}

function submitting(form, act) {
  at(form).addEventListener("submit", event => {
    event.preventDefault();
    act().catch(error => { at("about").textContent = error.message; });
  });
}

submitting("access", load);
submitting("request", send);
at("model").addEventListener("change", showInputs);
load().catch(error => { at("about").textContent = error.message; });
