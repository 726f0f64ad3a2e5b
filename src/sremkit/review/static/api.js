// Requests to the server. A failed request throws an Error with the sentence of the server.

async function request(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("the server does not answer; is `srem review` still running? Nothing was lost");
  }
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const detail = typeof content.detail === "string" ? content.detail : "the request was not understood";
    throw new Error(detail);
  }
  return content;
}

const post = (path, body) =>
  request(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

// The tab has a name of its own, which survives a reload: undo takes back decisions of this tab.
// A duplicated tab copies the storage, and then both tabs share their decisions.
let client = sessionStorage.getItem("client");
if (!client) {
  client = Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16).padStart(2, "0")).join("");
  sessionStorage.setItem("client", client);
}

export const describe = () => request("/api/audit");
export const listRows = (filters) => request(`/api/rows?${new URLSearchParams(filters)}`);
export const readPairs = (rows) => request(`/api/pairs?rows=${rows.join(",")}`);
export const changes = (since) => request(`/api/changes?since=${since}`);
export const decide = (row, action, text = null) => post("/api/decide", { row, action, text, client });
export const undo = () => post("/api/undo", { client });
export const imageAddress = (key, row, size, better = false) =>
  `/image/${key}/${row}/${size}${better ? "?better=true" : ""}`;
