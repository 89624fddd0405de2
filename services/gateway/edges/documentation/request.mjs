// Requests of the page, without the page: from the OpenAPI document to bodies and commands.

export const MAX_ELEMENTS = 4e6;
const MAX_PREFILLED = 256;
const MAX_SHOWN = 20000;
const JSON_TYPE = "application/json";

// Returns the served models that the document describes, in its order.
export function modelsOf(api) {
  return Object.entries(api.paths).flatMap(([path, item]) => {
    const call = item.post;
    if (!call || !call["x-model"]) return [];
    const form = call.requestBody.content[JSON_TYPE];
    return [{
      name: call["x-model"].name,
      version: call["x-model"].version,
      path,
      outputs: call.description,
      inputs: form ? inputsOf(form) : null, // null: a datatype has no JSON form
    }];
  });
}

function inputsOf(form) {
  const { items, allOf } = form.schema.properties.inputs;
  const needed = allOf && allOf.map(one => one.contains.properties.name.const);
  const given = new Map(((form.example || {}).inputs || []).map(one => [one.name, one]));
  return (items.oneOf || [items]).map(schema => {
    const name = schema.properties.name.const;
    const sizes = schema.properties.shape.prefixItems || [];
    const shape = sizes.map(size => "const" in size ? size.const : size.minimum);
    const count = elementsOf(shape);
    const isNeeded = !needed || needed.includes(name);
    const example = given.get(name);
    const data = example ? example.data : zeros(schema.properties.datatype.const, count);
    return {
      name,
      words: schema.description,
      datatype: schema.properties.datatype.const,
      isNeeded,
      shape: shape.join(", "),
      data: !isNeeded ? "" : count > MAX_PREFILLED ? "zeros" : JSON.stringify(data),
    };
  });
}

function elementsOf(shape) {
  return shape.reduce((count, size) => count * size, 1);
}

function zeros(datatype, count) {
  const element = datatype === "BOOL" ? false : datatype === "BYTES" ? "text" : 0;
  return new Array(Math.min(count, MAX_ELEMENTS)).fill(element);
}

function random(datatype, count) {
  if (datatype === "BOOL") return Array.from({ length: count }, () => Math.random() < 0.5);
  if (!datatype.startsWith("FP")) throw new Error("random values are floating-point or boolean");
  return Array.from({ length: count }, () => Math.round(Math.random() * 1e4) / 1e4);
}

// Makes the JSON text of a request. `filled` has the texts of each input's fields; one without data
// is left out. Numbers are passed on as they were written: JavaScript would round large integers.
export function bodyOf(filled) {
  const inputs = filled.filter(input => input.data.trim()).map(input => {
    const what = `input ${input.name}`;
    const shape = input.shape.split(",").map(text => text.trim()).filter(Boolean).map(Number);
    if (!shape.every(size => Number.isInteger(size) && size >= 0)) {
      throw new Error(`${what}: the shape is sizes with commas between, such as 1, 3`);
    }
    let data = input.data.trim();
    if (data === "zeros" || data === "random") {
      const count = elementsOf(shape);
      if (count > MAX_ELEMENTS) throw new Error(`${what}: ${count} elements are too many here`);
      data = JSON.stringify((data === "zeros" ? zeros : random)(input.datatype, count));
    } else {
      try {
        if (!Array.isArray(JSON.parse(data))) throw new Error("it is no list");
      } catch (error) {
        throw new Error(`${what}: the data is a JSON list, "zeros" or "random"; ${error.message}`);
      }
    }
    const head = { name: input.name, shape, datatype: input.datatype };
    return `${JSON.stringify(head).slice(0, -1)},"data":${data}}`;
  });
  return `{"inputs":[${inputs.join(",")}]}`;
}

const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;

// Returns the same request for a shell; a long body is a file of its own. The key stays out of it.
export function curlOf(url, body, hasKey) {
  const key = hasKey ? ' -H "Authorization: Bearer $KEY"' : "";
  const data = isLong(body) ? "@request.json" : quoted(body);
  return `curl -s${key} -H 'Content-Type: ${JSON_TYPE}' ${quoted(url)} --data-binary ${data}`;
}

export const isLong = body => body.length > 4000;

export function headersOf(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

// Returns the text of an answer as it is shown: its beginning, if it is long.
export function shown(text) {
  if (text.length <= MAX_SHOWN) return text;
  return `${text.slice(0, MAX_SHOWN)}\n… ${text.length - MAX_SHOWN} more characters`;
}
