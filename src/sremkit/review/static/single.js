// One pair: image, caption, score in words, and what would fit better. Captions are set as text, never as markup.

import { imageAddress } from "./api.js";

const element = (id) => document.getElementById(id);
export const DONE = { keep: "kept", drop: "dropped", edit: "caption edited", accept: "suggestion accepted" };

export function scoreText(pair, label = "score ") {
  if (pair.score === null) return pair.words;
  const score = pair.score < 0.001 ? "< 0.001" : pair.score.toFixed(3);
  return `${pair.words} (${label}${score})`;
}

/** A badge with the decision on a pair, or nothing. */
export function badge(decision) {
  const span = document.createElement("span");
  if (decision) {
    span.className = `badge ${decision.action}`;
    span.textContent = DONE[decision.action];
  }
  return span;
}

/** Show the image at an address; where it has none or cannot be read, the words that follow it. */
function showImage(image, address) {
  if (address !== null && image.getAttribute("src") === address) return; // also where it could not be read
  const show = (isShown) => { image.hidden = !isShown; image.nextElementSibling.hidden = isShown; };
  image.removeAttribute("src"); // else the image before is shown until this one is there
  show(address !== null);
  if (address === null) return;
  image.onerror = () => show(false);
  image.src = address;
}

export function showSingle(pair, key, hasImages) {
  showImage(element("image"), hasImages ? imageAddress(key, pair.row, "large") : null);
  element("image").alt = `image of pair ${pair.id ?? pair.row}`;
  const verdict = element("verdict");
  verdict.replaceChildren(pair.problem ? `cannot be read: ${pair.problem}` : scoreText(pair), " ", badge(pair.decision));
  const replaced = pair.decision?.text ?? null;
  const caption = element("caption");
  caption.textContent = pair.text ?? "(unknown)";
  if (pair.left_out) caption.textContent += ` … and ${pair.left_out} more characters`;
  caption.classList.toggle("replaced", replaced !== null);
  const suggestion = replaced ?? pair.better_text;
  element("better-text-part").querySelector("h2").textContent =
    replaced !== null ? "new caption" : "caption that fits the image better";
  element("better-text-part").hidden = suggestion === null;
  element("better-text").textContent = suggestion ?? "";
  const better = hasImages && pair.better_image;
  element("better-image-part").hidden = !better;
  if (better) showImage(element("better-image"), imageAddress(key, pair.row, "small", true));
  element("remarks").replaceChildren(...pair.remarks.map((remark) => {
    const item = document.createElement("li");
    item.textContent = remark;
    return item;
  }));
  const facts = [`pair ${pair.id ?? pair.row}`];
  if (pair.image && pair.image !== pair.id) facts.push(`image ${pair.image}`);
  if (pair.ranks[0]) facts.push(`caption rank ${pair.ranks[0]}`);
  if (pair.ranks[1]) facts.push(`image rank ${pair.ranks[1]}`);
  element("facts").textContent = facts.join(" · ");
  enableActions(pair);
}

/** Disable the buttons that cannot act on a pair; of one that is not read yet, none. */
export function enableActions(pair) {
  const cannot = {
    keep: pair?.problem, drop: pair?.problem, edit: pair?.problem || pair?.left_out > 0,
    accept: pair && (pair.problem || pair.better_text === null),
  };
  for (const button of document.querySelectorAll("#actions button")) button.disabled = Boolean(cannot[button.dataset.do]);
}
