// Strata through the client library `ollama`, as it comes from the registry.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Ollama } from 'ollama';
import { z } from 'zod';
import { eventually, forcing, metric, model, nobodyRuns, person, urls } from './cluster.mjs';

const options = { seed: 7, temperature: 0.4, num_predict: 24 };
const messages = [{ role: 'user', content: 'The old captain' }];

for (const [at, url] of urls.entries()) {
  const client = new Ollama({ host: url });
  const name = (what) => `ollama, node ${at}: ${what}`;

  test(name('lists and shows its models'), async () => {
    assert.ok((await client.version()).version);
    const { models } = await client.list();
    assert.deepEqual(models.map((each) => each.model), [`${model}`]);
    assert.ok(models[0].size > 0);
    assert.equal((await client.ps()).models[0].model, models[0].model);
    const shown = await client.show({ model });
    assert.ok(shown.capabilities.includes('completion'));
    assert.ok(shown.model_info['general.architecture']);
  });

  test(name('answers a chat, whole and streamed'), async () => {
    const whole = await client.chat({ model, messages, options });
    assert.equal(whole.message.role, 'assistant');
    assert.equal(whole.done_reason, 'length');
    assert.equal(whole.eval_count, 24);
    let text = '';
    let last;
    for await (const part of await client.chat({ model, messages, options, stream: true })) {
      text += part.message.content;
      last = part;
    }
    assert.equal(text, whole.message.content);
    assert.ok(last.done);
    assert.equal(last.eval_count, 24);
    assert.ok(last.eval_duration > 0);
  });

  test(name('completes a text, raw and through the template'), async () => {
    const ask = { model, prompt: 'The old captain', options };
    const raw = await client.generate({ ...ask, raw: true });
    assert.equal(raw.eval_count, 24);
    assert.ok(raw.response.length > 24);
    let text = '';
    for await (const part of await client.generate({ ...ask, raw: true, stream: true })) text += part.response;
    assert.equal(text, raw.response);
    assert.equal((await client.generate(ask)).eval_count, 24);
  });

  test(name('embeds texts'), async () => {
    const { embeddings, prompt_eval_count } = await client.embed({ model, input: ['The sea', 'A ship'] });
    assert.equal(embeddings.length, 2);
    assert.ok(prompt_eval_count > 2);
    assert.ok(embeddings.every((vector) => Math.abs(Math.hypot(...vector) - 1) < 1e-5));
    const { embedding } = await client.embeddings({ model, prompt: 'The sea' });
    assert.equal(embedding.length, embeddings[0].length);
  });

  test(name('writes what a schema says'), async () => {
    const format = z.toJSONSchema(person);
    const { message } = await client.chat({ model, messages, format, options: { ...options, num_predict: 300 } });
    person.parse(JSON.parse(message.content));
  });

  test(name('calls a tool, whole and streamed, and reads its result'), async () => {
    const tools = [
      {
        type: 'function',
        function: { name: 'save_person', description: 'Saves a person.', parameters: z.toJSONSchema(person) },
      },
    ];
    const forced = new Ollama({ host: url, fetch: forcing });
    const ask = { model, messages, tools, options: { ...options, num_predict: 300 } };
    const { message } = await forced.chat(ask);
    assert.equal(message.tool_calls.length, 1);
    assert.equal(message.tool_calls[0].function.name, 'save_person');
    person.parse(message.tool_calls[0].function.arguments);
    const calls = [];
    for await (const part of await forced.chat({ ...ask, stream: true })) {
      calls.push(...(part.message.tool_calls ?? []));
    }
    assert.equal(calls.length, 1);
    person.parse(calls[0].function.arguments);
    const result = { role: 'tool', tool_name: 'save_person', content: 'saved' };
    const after = await client.chat({ model, messages: [...messages, message, result], options });
    assert.equal(after.eval_count, 24);
  });

  test(name('says what is wrong in words that the client understands'), async () => {
    await assert.rejects(client.chat({ model: 'llama3.2', messages }), (error) => {
      assert.equal(error.name, 'ResponseError');
      assert.equal(error.status_code, 404);
      assert.match(error.message, /llama3\.2/);
      return true;
    });
  });

  test(name('a stream that is aborted frees its place'), { timeout: 60_000 }, async () => {
    await eventually(nobodyRuns);
    const before = await metric('strata_requests_cancelled_total');
    const endless = { num_predict: 1500, ignore_eos: true };
    const stream = await client.chat({ model, messages, options: endless, stream: true });
    await assert.rejects(
      (async () => {
        for await (const part of stream) if (part.message.content) stream.abort();
      })(),
      { name: 'AbortError' },
    );
    await eventually(nobodyRuns);
    assert.equal(await metric('strata_requests_cancelled_total'), before + 1);
  });
}
