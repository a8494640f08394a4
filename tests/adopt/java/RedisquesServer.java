import io.vertx.core.DeploymentOptions;
import io.vertx.core.Vertx;
import io.vertx.core.json.JsonObject;
import org.swisspush.redisques.RedisQues;
import org.swisspush.redisques.util.RedisquesConfiguration;

/** The real redisques with its HTTP interface, whose processor refuses every item. */
public class RedisquesServer {
    public static void main(String[] arguments) {
        JsonObject configuration = RedisquesConfiguration.with()
                .redisHost("127.0.0.1")
                .redisPort(Integer.parseInt(arguments[0]))
                .httpRequestHandlerEnabled(true)
                .httpRequestHandlerPort(Integer.parseInt(arguments[1]))
                .processorAddress("processor")
                .build().asJsonObject();
        Vertx vertx = Vertx.vertx();
        vertx.eventBus().consumer("processor", message -> message.reply(new JsonObject().put("status", "error")));
        vertx.deployVerticle(new RedisQues(), new DeploymentOptions().setConfig(configuration))
                .onSuccess(id -> System.out.println("started"))
                .onFailure(error -> { error.printStackTrace(); System.exit(1); });
    }
}
