// The search page: sends queries to /search and shows the results. Texts are set as text, never as markup.
const find = (id) => document.getElementById(id);
const [form, text, image, count, message, results] = ["form", "text", "image", "k", "message", "results"].map(find);
const asking = find("asking");
const address = new URL(location.href);
if (address.searchParams.has("token")) history.replaceState(null, "", "/"); // the cookie has it now
const MAX_IMAGE_BYTES = 10_000_000; // of the server
let latest = 0, asked = null; // the query whose results are shown, and what it finds

function show(sentence, isProblem = false) {
  message.textContent = sentence;
  message.classList.toggle("problem", isProblem);
}

function element(tag, content, name = "") {
  const made = document.createElement(tag);
  made.className = name;
  if (typeof content === "string") made.textContent = content;
  else made.append(...content);
  return made;
}

function card(hit) {
  const frame = element("div", [], "frame");
  const shown = new Image();
  shown.loading = "lazy";
  shown.alt = `image ${hit.image_id}`;
  shown.addEventListener("error", () => { frame.textContent = "no image"; });
  shown.src = `/images/${hit.image}`;
  frame.append(shown);
  const facts = element("p", [element("strong", `${hit.rank}. `), `score ${hit.score.toFixed(2)} `,
    element("span", hit.image_id, "faint")]);
  const parts = [frame, facts];
  if (hit.texts.length) parts.push(element("p", hit.texts[0]));
  return element("li", parts);
}

async function search(query, what) {
  const number = ++latest;
  asked = [query, what];
  show("searching …");
  asking.hidden = !query.image;
  if (query.image) asking.src = query.image;
  try {
    const started = performance.now();
    const answer = await fetch("/search", {
      method: "POST", headers: {"content-type": "application/json"},
      body: JSON.stringify({...query, k: Number(count.value)}),
    });
    const content = await answer.json();
    if (number !== latest) return; // a newer query is under way
    if (!answer.ok) {
      results.replaceChildren();
      const detail = content.detail;
      show(typeof detail === "string" ? detail : detail.map((part) => part.msg).join("; "), true);
      return;
    }
    results.replaceChildren(...content.results.map(card));
    show(`${content.results.length} ${what} in ${Math.round(performance.now() - started)} ms`);
  } catch {
    if (number === latest) show("the server does not answer; is it still running?", true);
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (text.value.trim()) search({text: text.value}, "images");
  else show("type what to find images of", true);
});

image.addEventListener("change", () => {
  const file = image.files[0];
  if (!file) return;
  if (file.size > MAX_IMAGE_BYTES) return show("the image file has more than 10 MB; make it smaller", true);
  const reader = new FileReader();
  text.value = "";
  reader.addEventListener("load", () => search({image: reader.result}, "captions"));
  reader.readAsDataURL(file);
});
image.addEventListener("click", () => { image.value = ""; }); // so that the same file can be chosen again
count.addEventListener("change", () => { if (asked) search(...asked); });

fetch("/health").then((answer) => answer.json()).then((health) => {
  find("collection").textContent = `${health.images.toLocaleString("en")} images and ` +
    `${health.texts.toLocaleString("en")} captions of ${health.collection}, model ${health.model}`;
}).catch(() => show("the server does not answer; is it still running?", true));
